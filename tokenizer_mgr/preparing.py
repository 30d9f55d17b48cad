"""A request that has arrived but is not submitted yet: its prompt is being tokenized."""

from __future__ import annotations

from ebbtide.errors import Rejected


class PreparingRequest:
    """A request that is not submitted yet, registered so that an abort finds it."""

    rids: tuple[str, ...] = ()

    def __init__(self, owner: str) -> None:
        self.owner = owner
        self._error: Rejected | None = None

    @property
    def has_outcome(self) -> bool:
        """True if the request was aborted."""
        return self._error is not None

    def fail(self, error: Rejected) -> None:
        """Abort the request with ``error``."""
        self._error = error

    def check(self) -> None:
        """Raise the abort's error if the request was aborted."""
        if self._error is not None:
            raise self._error
