"""Monitors the child processes on the event loop: loading progress, readiness and exit."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from ebbtide.errors import StartupError
from ebbtide.messages import EncoderInfo, RunnerInfo
from ebbtide.progress import Progress
from ebbtide.runtime.child import Child, Status


@dataclass(frozen=True, slots=True)
class Ready:
    """The reports of the child processes, sent when they became ready. A field is None if there is no such process."""

    runner: RunnerInfo | None = None
    encoder: EncoderInfo | None = None


class Children:
    """Monitors the status pipes of several child processes.

    Attributes:
        ready: resolves to the children's reports once all children are ready; fails with StartupError if a child fails
            before that.
        ended: resolves to the first child that exits after all children were ready.
    """

    def __init__(self, children: Sequence[Child], progress: Progress) -> None:
        loop = asyncio.get_running_loop()
        self.ready: asyncio.Future[Ready] = loop.create_future()
        self.ended: asyncio.Future[Child] = loop.create_future()
        self._children = tuple(children)
        self._progress = progress
        self._waiting_for = {child.title for child in children}
        self._reported = Ready()
        for child in children:
            loop.add_reader(child.status_fd, self._on_status, child)

    def close(self) -> None:
        """Stop monitoring. Further calls have no effect, so a reused file descriptor is not touched."""
        for child in self._children:
            asyncio.get_running_loop().remove_reader(child.status_fd)
        self._children = ()
        self.ready.cancel()
        self.ended.cancel()

    def _on_status(self, child: Child) -> None:
        lines = child.read_status()
        if lines is not None:
            for status in lines:
                self._handle_status(child, status)
            return
        asyncio.get_running_loop().remove_reader(child.status_fd)
        if not self.ready.done():
            self.ready.set_exception(StartupError(child.exit_description()))
        elif not self.ended.done():
            self.ended.set_result(child)

    def _handle_status(self, child: Child, status: Status) -> None:
        match status.kind:
            case "progress":
                self._progress(status.text, status.share)
            case "failed" if not self.ready.done():
                self.ready.set_exception(StartupError(status.text))
            case "ready":
                seen = self._reported
                self._reported = Ready(status.runner or seen.runner, status.encoder or seen.encoder)
                self._waiting_for.discard(child.title)
                if not self._waiting_for and not self.ready.done():
                    self.ready.set_result(self._reported)
