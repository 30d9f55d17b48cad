"""The stop signals of the front process, in the three phases of its life. The only place that sets their handlers."""

from __future__ import annotations

import asyncio
import signal
from types import FrameType


class StopSignals:
    """Counts requests to stop.

    Before ``attach`` a signal ends the process by SystemExit(0), so that ``finally`` clauses run; afterwards it only
    counts: the loop decides, and what is done once the loop has ended is not to be interrupted.
    """

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._events = (asyncio.Event(), asyncio.Event())
        self._count = 0

    def install(self) -> None:
        """Handle the signals from now on. Main thread only."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._note)
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup wants a closed terminal to change nothing
            signal.signal(signal.SIGHUP, self._note)

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """From now on ``first`` and ``second`` tell the loop."""
        self._loop = loop

    @property
    def first(self) -> asyncio.Event:
        """Set when the operator wants it to end."""
        return self._events[0]

    @property
    def second(self) -> asyncio.Event:
        """Set when the operator wants it to end now."""
        return self._events[1]

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self._loop is None:
            raise SystemExit(0)
        self._count += 1
        if self._count <= len(self._events) and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._events[self._count - 1].set)
