"""Reports readiness, shutdown and liveness to systemd, with the protocol of sd_notify(3)."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable, MutableMapping

log = logging.getLogger(__name__)

INTERVALS_PER_TIMEOUT = 3  # two lost or late messages in a row are harmless


class ServiceManager:
    """The notification socket of the service manager. Every method does nothing if there is no such socket."""

    def __init__(self, address: str = "", watchdog_s: float = 0.0) -> None:
        """
        address: a path, or "@" and a name in Linux's abstract namespace; "" if there is no service manager.
        watchdog_s: the watchdog timeout in seconds; 0 if no watchdog is configured.
        """
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._watchdog_s = watchdog_s

    def notify(self, *assignments: str) -> None:
        """Send assignments such as ``READY=1``. If sending fails, only log a warning, because serving must continue."""
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel:
                channel.setblocking(False)
                channel.sendto("\n".join(assignments).encode(), self._address)
        except OSError as error:
            log.warning("the service manager was not notified of %s: %s", assignments[0], error)

    async def keep_alive(self, unhealthy_reason: Callable[[], str | None]) -> None:
        """Send ``WATCHDOG=1`` while ``unhealthy_reason`` returns None, until cancelled.

        The messages are sent on the event loop: if the loop hangs, the messages stop, and systemd ends the service.
        Returns immediately if no watchdog is configured.
        """
        while self._watchdog_s:
            if unhealthy_reason() is None:
                self.notify("WATCHDOG=1")
            await asyncio.sleep(self._watchdog_s / INTERVALS_PER_TIMEOUT)


def take_service_manager(environment: MutableMapping[str, str]) -> ServiceManager:
    """Read systemd's variables and remove them from ``environment``, so that no child process inherits them."""
    address = environment.pop("NOTIFY_SOCKET", "")
    microseconds = environment.pop("WATCHDOG_USEC", "")
    own_pid = environment.pop("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
    watchdog_s = int(microseconds) / 1e6 if own_pid and microseconds.isdecimal() else 0.0
    return ServiceManager(address if address.startswith(("/", "@")) else "", watchdog_s)
