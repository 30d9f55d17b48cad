"""The pages of one running request in the pool of a sliding window."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..node import PathElement


@dataclass(slots=True)
class WindowPages:
    """The pages of one running request.

    Attributes:
        pages: the pages from page index ``first`` on.
        cached_end: page index up to which the pages belong to the prefix tree or to a tail.
        sent: page index up to which the runner has the pages.
        node: node or tail whose last page is the one before ``cached_end``; None without shared pages.
    """

    first: int = 0
    pages: list[int] = field(default_factory=list)
    cached_end: int = 0
    sent: int = 0
    node: PathElement | None = None

    @property
    def end(self) -> int:
        """The page index after the last page."""
        return self.first + len(self.pages)

    @property
    def num_shared(self) -> int:
        """Number of pages that belong to the tree or to a tail."""
        return max(self.cached_end - self.first, 0)

    @property
    def private(self) -> list[int]:
        """The pages that the request owns."""
        return self.pages[self.num_shared :]
