"""A request that has come and that the engine does not have yet: its prompt is still being read."""

from __future__ import annotations

from ebbtide.errors import Rejected


class PreparingRequest:
    """What an abort finds of a request before it is submitted. owner: whose it is."""

    rids: tuple[str, ...] = ()

    def __init__(self, owner: str) -> None:
        self.owner = owner
        self._error: Rejected | None = None

    @property
    def has_outcome(self) -> bool:
        """Whether it was ended already."""
        return self._error is not None

    def fail(self, error: Rejected) -> None:
        """It is not wanted any more."""
        self._error = error

    def check(self) -> None:
        """Raises the error with which it was ended."""
        if self._error is not None:
            raise self._error
