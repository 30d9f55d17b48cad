"""Handles SIGINT, SIGTERM and SIGHUP in the front process: before, while and after the event loop runs."""

from __future__ import annotations

import asyncio
import signal
from types import FrameType


class StopSignals:
    """Counts stop signals.

    Before ``attach`` a signal raises SystemExit(0), so that ``finally`` clauses run. After ``attach``, a signal only
    sets an event for the loop. After the loop has ended, signals are ignored, so that they cannot interrupt the
    cleanup.
    """

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._events = (asyncio.Event(), asyncio.Event())
        self._count = 0

    def install(self) -> None:
        """Install the signal handlers. Call it on the main thread."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._on_signal)
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # keep it ignored under nohup
            signal.signal(signal.SIGHUP, self._on_signal)

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """From now on, set ``first`` and ``second`` on ``loop`` instead of raising SystemExit."""
        self._loop = loop

    @property
    def first(self) -> asyncio.Event:
        """Set by the first stop signal, after which the server drains and exits."""
        return self._events[0]

    @property
    def second(self) -> asyncio.Event:
        """Set by the second stop signal, after which the server aborts open requests and exits."""
        return self._events[1]

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._loop is None:
            raise SystemExit(0)
        self._count += 1
        if self._count <= len(self._events) and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._events[self._count - 1].set)
