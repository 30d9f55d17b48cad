"""The configuration of uvicorn: timeouts, protocol class and TLS. The module does not depend on the routes."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial

import uvicorn
from starlette.types import ASGIApp

from ebbtide.config import LimitsConfig

from .tls import Tls
from .wire_protocol import WireLimits, WireProtocol

KEEP_ALIVE_S = 75  # longer than common clients keep an idle connection in their pool
SHUTDOWN_GRACE_S = 5  # seconds in which started responses may be completed when the server stops
MAX_OPEN_FILES = 65_536
RESERVED_FILES = 256  # file descriptors reserved for uses other than connections
TICK_S = 1.0  # seconds between two updates of the Date header
TICKS_PER_CERT_CHECK = 10


class HttpServer(uvicorn.Server):
    """A uvicorn server that installs no signal handlers and reloads a changed certificate.

    While idle, it wakes once per second. uvicorn wakes ten times, because it polls a flag to learn that it should stop.
    """

    def __init__(self, config: uvicorn.Config, tls: Tls | None) -> None:
        super().__init__(config)
        self._tls = tls
        self._stopping = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    def stop(self) -> None:
        """Ask the server to stop. May be called from any thread."""
        self.should_exit = True
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._stopping.set)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def main_loop(self) -> None:
        """Called by uvicorn; returns when the server should exit."""
        self._loop = asyncio.get_running_loop()
        num_ticks = 0
        while not await self.on_tick(0):  # with the argument 0, it updates the Date header
            if self._tls is not None and num_ticks % TICKS_PER_CERT_CHECK == 0:
                self._tls.reload_if_changed()
            num_ticks += 1
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), TICK_S)


def wire_limits(config: LimitsConfig) -> WireLimits:
    """Return the configured connection limits, bounded by the number of files that the process may open.

    Also raises the process's soft limit of open files to ``MAX_OPEN_FILES``, or to the hard limit if that is lower.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, MAX_OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    room = max(wanted - RESERVED_FILES, 1)
    return WireLimits(min(config.max_connections or room, room), config.receive_timeout)


def http_server(app: ASGIApp, tls: Tls | None, limits: WireLimits | None = None) -> HttpServer:
    """Return a server for ``app``, without starting it."""
    config = uvicorn.Config(
        app,
        log_config=None,
        log_level="warning",
        access_log=False,
        http=partial(WireProtocol, limits=limits or WireLimits()),  # type: ignore[arg-type]  # uvicorn only calls it
        lifespan="off",
        ws="none",
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=SHUTDOWN_GRACE_S,
    )
    config.load()
    config.ssl = None if tls is None else tls.context
    return HttpServer(config, tls)
