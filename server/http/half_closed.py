"""Handles clients that have ended their input: they may still read the answer or may have disconnected.

Only a write shows the difference, because a disconnected client answers it with a reset. A stream needs no special
handling, because it writes anyway. Before a response starts, the server therefore writes interim responses (RFC 9110
section 15.2), which clients must ignore. HTTP/1.0 has no interim responses, so a response to such a client must start
soon.
"""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

FIRST_PROBE_S = 0.1
MAX_PROBE_INTERVAL_S = 16.0
OLD_CLIENT_S = 1.0  # seconds that a client of HTTP/1.0 may wait for the start of its response
INTERIM = b"HTTP/1.1 100 Continue\r\n\r\n"


class PeerProbe:
    """Detects that the client of a connection has disconnected while it waits for the response of ``cycle``."""

    def __init__(
        self, cycle: RequestResponseCycle, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._transport = transport
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None
        self.watch(cycle)

    def watch(self, cycle: RequestResponseCycle) -> None:
        """Start probing until the response of ``cycle`` starts."""
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
