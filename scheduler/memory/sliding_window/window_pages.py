"""The pages of running requests in the pool of a sliding window."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from ..allocator import PageAllocator
from ..cached_request import CachedRequest
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

    def take_unsent(self) -> tuple[int, list[int]]:
        """See ``FurtherPool``."""
        index = max(self.sent, self.first)
        self.sent = self.end
        return index, self.pages[index - self.first :]


class RunningWindows:
    """The pages of all running requests in one window pool.

    Attributes:
        held: the pages of every request to which pages were allocated or attached, by request id.
        num_private: number of pages that requests own, updated with every change.
    """

    def __init__(self, allocator: PageAllocator, num_before: int) -> None:
        """num_before: number of pages before the last confirmed page that a request keeps."""
        self.held: dict[str, WindowPages] = {}
        self.num_private = 0
        self._allocator = allocator
        self._num_before = num_before

    def of(self, req: CachedRequest) -> WindowPages:
        """Return the pages of ``req``; an empty list that is not kept if it has none."""
        return self.held.get(req.rid) or WindowPages()

    def begin(self, req: CachedRequest) -> int:
        """Return the page index of the first page that ``req`` keeps: those before it are behind its window."""
        return req.num_confirmed // self._allocator.page_size - self._num_before

    def allocate(self, req: CachedRequest, held: WindowPages, num_pages: int) -> None:
        """Add private pages: ``num_pages``, or all free pages if there are fewer."""
        count = min(num_pages, self._allocator.available_pages)
        held.pages += self._allocator.take(count, req)
        self.num_private += count

    def free(self, req: CachedRequest, pages: list[int]) -> None:
        """Free private pages, which the caller removes from the request's list."""
        self._allocator.give(pages, req)
        self.num_private -= len(pages)

    def locks(self, running: Iterable[CachedRequest]) -> Iterator[tuple[PathElement, int, int]]:
        """Yield the arguments of ``WindowSpans.lock`` for all requests with shared pages."""
        for req in running:
            held = self.held.get(req.rid)
            if held is not None and held.node is not None:
                yield held.node, held.first, held.cached_end

    def recount(self, running: Sequence[CachedRequest]) -> int:
        """Return the number of private pages of these requests, from their lists."""
        # Usually exactly the running requests have entries; ``validate`` finds others.
        lists: Iterable[WindowPages] = self.held.values()
        if len(self.held) != len(running):
            lists = [self.held[req.rid] for req in running if req.rid in self.held]
        return sum(
            [len(one.pages) - (one.cached_end - one.first if one.cached_end > one.first else 0) for one in lists]
        )

    def keep(self, running: Iterable[CachedRequest]) -> None:
        """Forget the pages of all other requests, without freeing them."""
        self.held = {req.rid: self.held[req.rid] for req in running if req.rid in self.held}

    def validate(self, running: Collection[CachedRequest]) -> list[str]:
        """Return descriptions of all errors: pages behind a window, and pages of requests that are not running."""
        errors = [
            f"{req.tag} holds pages from index {held.first} on, but its window begins at page {first}"
            for req in running
            if (held := self.held.get(req.rid)) is not None and held.first != (first := max(self.begin(req), 0))
        ]
        stray = sorted(self.held.keys() - {req.rid for req in running})
        return errors + ([f"pages are held for requests that are not running: {', '.join(stray)}"] if stray else [])
