"""Clients that have ended their input: they may still read the answer, or may have left.

Both look alike until something is written: a client that has left answers with a reset. A stream writes anyway.
Before a response has started, interim responses (RFC 9110 section 15.2) are written, which clients must ignore. Clients
of HTTP/1.0 do not know them, so a response to such a client must start soon.
"""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

FIRST_PROBE_S = 0.1
MAX_PROBE_INTERVAL_S = 16.0
OLD_CLIENT_S = 1.0  # how long a client of HTTP/1.0 may wait for the start of its response
INTERIM = b"HTTP/1.1 100 Continue\r\n\r\n"


class PeerProbe:
    """Finds out whether the client of a connection has left, while it waits for the response of ``cycle``."""

    def __init__(
        self, cycle: RequestResponseCycle, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._transport = transport
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None
        self.watch(cycle)

    def watch(self, cycle: RequestResponseCycle) -> None:
        """Probe from now on while the response of ``cycle`` has not started."""
        self.stop()
        self._cycle = cycle
        if cycle.scope["http_version"] < "1.1":
            self._timer = self._loop.call_later(OLD_CLIENT_S, self._give_up)
        else:
            self._timer = self._loop.call_later(FIRST_PROBE_S, self._probe, 2 * FIRST_PROBE_S)

    def stop(self) -> None:
        """End the probing. May be repeated."""
        if self._timer is not None:
            self._timer.cancel()

    def _probe(self, next_s: float) -> None:
        if not self._cycle.response_started and not self._transport.is_closing():
            self._transport.write(INTERIM)
            self._timer = self._loop.call_later(next_s, self._probe, min(2 * next_s, MAX_PROBE_INTERVAL_S))

    def _give_up(self) -> None:
        if not self._cycle.response_started:
            self._transport.close()
