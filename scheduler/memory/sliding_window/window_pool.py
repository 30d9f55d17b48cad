"""The pool of the layers with a sliding window: a request keeps only the pages that its next tokens read.

With a prefix cache, the pages of published tokens belong to the nodes of the tree (``WindowSpans``), and a request
locks those inside its window. When a step is settled, private pages behind the window are freed, and those of the tree
are unlocked.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

from ebbtide.messages import PoolInfo
from ebbtide.paging import pages_for

from ..accounting import OwnershipError, PoolAccounting, Sweep, compare_with_ledger, mismatches, rebuild
from ..allocator import PageAllocator
from ..cached_request import CachedRequest
from ..kv_pool import total_demand
from ..ledger import PageOwner
from ..node import Node, PathElement, Tail
from ..tree_part import MatchPath
from .window_pages import RunningWindows, WindowPages
from .window_spans import WindowSpans


class WindowPool:
    """A ``FurtherPool``, a ``TreePart`` and a ``TailPart``."""

    def __init__(
        self, info: PoolInfo, chunk_tokens: int, *, on_free: Callable[[Sequence[int]], None] | None = None
    ) -> None:
        """chunk_tokens: number of tokens of one request that can be in flight or planned at a time."""
        assert info.window is not None
        self.name = info.name
        self.page_size = info.page_size
        self.allocator = PageAllocator(info.num_pages, info.page_size, on_free=on_free)
        self.ledger = self.allocator.ledger
        self.quarantined: set[int] = set()
        self._num_before = pages_for(info.window - 1, info.page_size)
        self._num_ahead = pages_for(chunk_tokens + info.page_size - 1, info.page_size)
        self.spans = WindowSpans(self.allocator, self._num_before)
        self._store = self.spans.store
        self.running = RunningWindows(self.allocator, self._num_before)
        self._sweep = Sweep(self.allocator)

    @property
    def held(self) -> dict[str, WindowPages]:
        """See ``FurtherPool``."""
        return self.running.held

    @property
    def capacity(self) -> int:
        """See ``KvPool``."""
        return self.allocator.num_pages - len(self.quarantined)

    @property
    def available_pages(self) -> int:
        """See ``KvPool``."""
        return self.allocator.available_pages

    @property
    def usable_pages(self) -> int:
        """See ``KvPool``."""
        return self.allocator.available_pages + self._store.evictable_pages + self._store.evictable_session_pages

    @property
    def max_pages(self) -> int:
        """See ``KvPool``: the window, the tokens of the steps in flight and of the next one, and the page in which the
        window begins. If the pool has fewer pages, chunks are shortened.
        """
        return max(self._num_before + 1, min(self._num_before + self._num_ahead, self.capacity))

    def pages_for(self, num_tokens: int) -> int:
        """See ``KvPool``."""
        return min(-(-num_tokens // self.page_size), self.max_pages)

    def num_pages(self, req: CachedRequest) -> int:
        """See ``KvPool``."""
        return len(self.running.of(req).pages)

    def missing_pages(self, req: CachedRequest, num_tokens: int) -> int:
        """See ``KvPool``."""
        held = self.running.of(req)
        return max(self._end_for(req, held, num_tokens) - held.end, 0)

    def pages_to_restore(self, req: CachedRequest, num_tokens: int) -> int:
        """See ``KvPool``."""
        first = num_tokens // self.page_size - self._num_before
        return max(pages_for(num_tokens, self.page_size) - max(first, self.running.of(req).end), 0)

    def freed_by(self, req: CachedRequest) -> int:
        """See ``KvPool``."""
        held = self.running.of(req)
        exclusive = 0 if held.node is None else self.spans.num_exclusive(held.node, held.first, held.cached_end)
        return len(held.pages) - held.num_shared + exclusive

    def demand(self, running: Sequence[CachedRequest]) -> int:
        """See ``KvPool``."""
        short = [req for req in running if req.computed + req.max_samples > req.sent_elsewhere]
        ends = [(req, req.computed + (req.num_samples if req.is_decoding else 1)) for req in short]
        return total_demand([(req, self.missing_pages(req, end)) for req, end in ends], len(running))

    def evict_from_tree_cache(self, num_pages: int) -> bool:
        """See ``KvPool``."""
        shortfall = num_pages - self.allocator.available_pages
        if shortfall > 0:
            self.spans.evict(shortfall)
        return self.allocator.available_pages >= num_pages

    def allocate_up_to(self, req: CachedRequest, num_tokens: int) -> int:
        """See ``KvPool``."""
        held = self.held.setdefault(req.rid, WindowPages())
        missing = self._end_for(req, held, num_tokens) - held.end
        if missing > 0:
            self.evict_from_tree_cache(missing)
            self.running.allocate(req, held, missing)
        return held.end * self.page_size

    def settled(self, req: CachedRequest) -> None:
        """See ``FurtherPool``. Keeps the pages that a later match up to the last full page would need."""
        held = self.held.setdefault(req.rid, WindowPages())
        first = self.running.begin(req)
        if first <= held.first:
            return
        if held.node is not None and held.first < held.cached_end:
            self.spans.advance(held.node, held.first, min(first, held.cached_end), held.cached_end)
        gone = held.private[: max(first - max(held.first, held.cached_end), 0)]
        if gone:
            self.running.free(req, gone)
        del held.pages[: first - held.first]
        held.first = first

    def release_kv_cache(self, req: CachedRequest, *, is_insert: bool) -> None:
        """See ``KvPool``. Frees only private pages: ``released`` has already unlocked those of the tree."""
        held = self.held.pop(req.rid, None)
        if held is not None:
            self.running.free(req, held.private)

    def take_unsent(self, req: CachedRequest) -> tuple[int, list[int]]:
        """See ``FurtherPool``."""
        return self.held[req.rid].take_unsent()

    def usable_match(self, path: MatchPath) -> int:
        """See ``TreePart``."""
        return self.spans.usable_match(path)

    def num_locked(self, path: MatchPath) -> int:
        """See ``TreePart``."""
        return self.spans.num_locked(path)

    def attached(self, req: CachedRequest, end: PathElement) -> None:
        """See ``TreePart``."""
        num_pages = len(req.pages)
        first = max(num_pages - self._num_before, 0)
        pages = self.spans.pages_of(end, first, num_pages)
        self.held[req.rid] = WindowPages(first, pages, num_pages, first, end)
        self.spans.lock(end, first, num_pages)

    def node_ends(self, req: CachedRequest, num_pages: int) -> tuple[int, ...]:
        """See ``TreePart``. A node can have the pages of any part of its tokens."""
        return ()

    def published(self, req: CachedRequest, node: Node, start: int) -> None:
        """See ``TreePart``. A node that lies entirely behind the window gets no pages."""
        held = self.held[req.rid]
        end = start + len(node.pages)
        begin = max(start, held.first)
        own = held.pages[max(begin - held.first, 0) : max(end - held.first, 0)]
        if own:
            pages = self.spans.publish(node, own, req)
            self.running.num_private -= len(own)
            held.pages[begin - held.first : end - held.first] = pages
            num_same = next(
                (index for index, pair in enumerate(zip(own, pages, strict=True)) if pair[0] != pair[1]), end
            )
            if begin + num_same < held.sent:
                held.sent, req.sent_elsewhere = begin + num_same, 0
        held.cached_end, held.node = end, node

    def split(self, upper: Node, lower: Node) -> None:
        """See ``TreePart``."""
        self._store.split(upper, lower)

    def trimmed(self, element: PathElement, num_pages: int) -> None:
        """See ``TreePart``."""
        self.spans.trimmed(element, num_pages)

    def released(self, req: CachedRequest, access_clock: int) -> None:
        """See ``TreePart``. The request keeps its private pages."""
        self._store.access_clock = access_clock
        held = self.held.get(req.rid)
        if held is not None and held.node is not None:
            self.spans.unlock(held.node, held.first, held.cached_end)
            del held.pages[: held.num_shared]
            held.first, held.node = max(held.first, held.cached_end), None

    def kept(self, nodes: Collection[Node]) -> None:
        """See ``TreePart``."""
        self._store.keep(nodes)

    @property
    def on_eviction(self) -> Callable[[PathElement], None]:
        """See ``TailPart``."""
        return self.spans.on_eviction

    @on_eviction.setter
    def on_eviction(self, call: Callable[[PathElement], None]) -> None:
        self.spans.on_eviction = call

    @property
    def session_held_pages(self) -> int:
        """See ``TailPart``."""
        return self._store.session_held_pages

    def can_continue(self, req: CachedRequest, num_pages: int) -> bool:
        """See ``TailPart``."""
        return self.held[req.rid].first <= max(num_pages - self._num_before, 0)

    def extended(self, req: CachedRequest, tail: Tail, num_new: int) -> None:
        """See ``TailPart``. A tail keeps the pages before its window only while the request reads some of them."""
        held = self.held[req.rid]
        end = held.cached_end + num_new
        own = held.pages[held.num_shared : max(end - held.first, 0)]
        self.spans.extend(tail, own, min(held.num_shared, len(tail.pages) - num_new), req)
        self.running.num_private -= len(own)
        held.cached_end, held.node = end, tail

    def forgotten(self, tail: Tail) -> None:
        """See ``TailPart``."""
        self._store.forget(tail)

    def is_usable(self, tail: Tail) -> bool:
        """See ``TailPart``. If the tail is shorter than the window, the tree may have the other pages of the window."""
        return self.spans.num_held(tail) >= min(self._num_before, len(tail.pages))

    def tail_pages(self, tail: Tail) -> int:
        """See ``TailPart``."""
        return self.spans.num_held(tail)

    def accounting(self) -> PoolAccounting:
        """See ``AuditedPool``."""
        return PoolAccounting(
            available=self.allocator.available_pages,
            evictable=self._store.evictable_pages,
            protected=self._store.protected_pages,
            session_held=self._store.session_held_pages,
            uncached=self.running.num_private,
            total=self.capacity,
            quarantined=len(self.quarantined),
        )

    def owners(self, running: Iterable[CachedRequest]) -> Iterator[tuple[PageOwner, Sequence[int]]]:
        """See ``AuditedPool``."""
        yield from self._store.owners()
        for req in running:
            yield req, self.running.of(req).private

    def recount(self, running: Sequence[CachedRequest]) -> int:
        """See ``AuditedPool``."""
        return self.running.recount(running)

    def find_ownership_errors(self, running: Iterable[CachedRequest]) -> list[OwnershipError]:
        """See ``AuditedPool``."""
        return compare_with_ledger(self.allocator, self.owners(running), self.quarantined)

    def sweep(self, running: Sequence[CachedRequest]) -> list[OwnershipError]:
        """See ``AuditedPool``."""
        errors = self._sweep.check_free_list()
        for req in self._sweep.next_share(running):
            errors += mismatches(self.ledger, self.running.of(req).private, req)
        for owner, pages in self._store.next_owners(self._sweep.share):
            errors += mismatches(self.ledger, pages, owner)
        return errors

    def drop_owners(self, owners: Collection[int]) -> None:
        """See ``FurtherPool``."""
        self._store.drop(owners)

    def is_intact(self, req: CachedRequest) -> bool:
        """See ``FurtherPool``."""
        held = self.running.of(req)
        shared = held.pages[: held.num_shared]
        cached = not shared or (held.node is not None and self.spans.has(held.node, shared, held.cached_end))
        return cached and self.quarantined.isdisjoint(held.pages)

    def repair(self, running: Sequence[CachedRequest]) -> None:
        """See ``AuditedPool``."""
        self.running.keep(running)
        rebuild(self.allocator, self.owners(running), self.quarantined)
        self.running.num_private = self.recount(running)
        self.spans.rebuild(self.running.locks(running))

    def validate(self, running: Sequence[CachedRequest]) -> list[str]:
        """See ``FurtherPool``."""
        return self.running.validate(running) + self.spans.validate(self.running.locks(running))

    def _end_for(self, req: CachedRequest, held: WindowPages, num_tokens: int) -> int:
        """Return the page index up to which ``req`` gets pages for its first ``num_tokens`` tokens.

        The next token always gets one: with a step in flight, the window has not left its last pages behind yet.
        """
        most = max(held.first + self.max_pages, req.computed // self.page_size + 1)
        return min(-(-num_tokens // self.page_size), most)
