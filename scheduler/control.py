"""Operator requests to the whole scheduler: flush the cache, pause, continue.

The caller passes the current time, in seconds.
"""

from __future__ import annotations

from dataclasses import dataclass

from ebbtide.messages import ControlReq, Reply

from .lifecycle import Lifecycle
from .memory.pool import Pool
from .outbox import Outbox


@dataclass(frozen=True, slots=True)
class _PendingFlush:
    """A flush that is waiting until no request is open."""

    call: str
    until_s: float


class Control:
    """Carries out operator requests.

    Attributes:
        paused: True while no new steps are planned; requests keep their memory.
        num_flushes: number of cache flushes since the start.
    """

    def __init__(self, lifecycle: Lifecycle, pool: Pool, outbox: Outbox) -> None:
        self.paused = False
        self.num_flushes = 0
        self._lifecycle = lifecycle
        self._pool = pool
        self._outbox = outbox
        self._pending: list[_PendingFlush] = []

    def handle(self, message: ControlReq, now: float) -> None:
        """Carry out one operator request. A flush waits until no request is open, at most for its timeout.

        Every operator request gets exactly one reply.
        """
        match message.action:
            case "pause" | "continue":
                self.paused = message.action == "pause"
                self._outbox.output.replies.append(Reply(message.call))
            case "flush":
                self._pending.append(_PendingFlush(message.call, now + message.timeout_s))
                self.on_timer(now)

    def on_timer(self, now: float) -> None:
        """Carry out pending flushes if no request is open, and refuse those that have reached their timeout."""
        if not self._pending:
            return
        num_open = len(self._lifecycle.requests)
        if not num_open:
            self._pool.tree_cache.clear()
            self.num_flushes += 1
            self._outbox.output.replies += [Reply(flush.call) for flush in self._pending]
            self._pending.clear()
            return
        busy = (
            f"The cache is in use: {num_open} requests are running or waiting. Set 'timeout' to wait until they have"
            " finished."
        )
        late = [flush for flush in self._pending if flush.until_s <= now]
        self._outbox.output.replies += [Reply(flush.call, 400, "busy", busy) for flush in late]
        self._pending = [flush for flush in self._pending if flush.until_s > now]
