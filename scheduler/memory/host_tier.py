"""The host tier: K/V of retracted requests in host memory, so that they resume with a copy instead of a prefill.

The host tier decides which pages to copy; ``HostPool`` keeps their numbers, with its own accounting; the runner copies
the bytes as the plan specifies. The pages of a request in all pools are copied together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from ebbtide.messages import RunnerInfo
from ebbtide.paging import pages_for
from ebbtide.plan import PageCopies, PoolCopies

from .cached_request import CachedRequest
from .host_pool import HostPool
from .sliding_window.window_pool import WindowPool


class HostTier:
    """Decides which K/V to copy to the host and back.

    Attributes:
        pools: the host pages for each device pool, in the order of ``RunnerInfo.pools``.
    """

    def __init__(
        self, info: RunnerInfo, count: Callable[[str, int], None], more_pools: Sequence[WindowPool] = ()
    ) -> None:
        """
        count: called with a metric name and a number of tokens for every copy.
        more_pools: all device pools except the first.
        """
        self.page_size = info.page_size  # in tokens; all pools have the same page size
        sizes = zip(more_pools, info.more_host_pages, strict=True)
        more = [HostPool(f"host_{pool.name}", num_pages, pool.page_size) for pool, num_pages in sizes]
        self.pools = [HostPool("host", info.num_host_pages, info.page_size), *more]
        self._more_pools = more_pools
        self._recompute_token_s = info.recompute_token_s
        self._restore_token_s = info.restore_token_s
        self._count = count
        self._num_tokens: dict[str, int] = {}  # by rid, the number of leading tokens up to the end of the copy

    def offload_kv_cache(self, req: CachedRequest, first: int) -> bool:
        """Copy the computed pages of a running request, starting at index ``first``, to the host.

        With several pools, all its pages are copied: when it resumes, the prefix cache may have lost the window before
        page ``first``, so that a match ends earlier.

        Returns False and copies nothing if there is no room, or if a prefill is estimated to take less time. The next
        plan copies the pages before it writes to any page, so the device pages may be freed at once.
        """
        if self.pools[0].restores(req):
            return False
        num_tokens = min(req.computed, len(req.known) - 1)
        last = pages_for(num_tokens, self.page_size)
        pages = [
            (begin, held[: last - begin]) for begin, held in self._device_pages(req, 0 if self._more_pools else first)
        ]
        if not pages[0][1] or not self._pays(num_tokens, len(pages[0][1])):
            return False
        if not all(pool.can_continue(req, num_tokens // self.page_size) for pool in self._more_pools):
            return False
        if any(len(held) > pool.allocator.available_pages for pool, (_, held) in zip(self.pools, pages, strict=True)):
            return False
        for pool, (begin, held) in zip(self.pools, pages, strict=True):
            pool.save(req, begin, held)
        self._num_tokens[req.rid] = num_tokens
        self._count("kv_offloaded_tokens_total", num_tokens - pages[0][0] * self.page_size)
        return True

    def price(self, num_tokens: int) -> int:
        """Return how many tokens of prefill take as long as bringing back the K/V of ``num_tokens`` tokens."""
        pages = pages_for(num_tokens, self.page_size)
        needs = [pages, *(pool.pages_for(num_tokens) for pool in self._more_pools)]
        has_room = all(need <= pool.allocator.available_pages for need, pool in zip(needs, self.pools, strict=True))
        if not has_room or not self._pays(num_tokens, pages):
            return num_tokens
        return round(num_tokens * self._restore_token_s / self._recompute_token_s)

    def restorable(self, req: CachedRequest, num_cached: int) -> int:
        """Return the number of tokens that would have K/V after ``restore``.

        num_cached: number of the request's leading pages that are in the prefix cache. Returns 0 if a pool has no copy,
            or if the copy begins after the end of these pages.
        """
        copies = [pool.copy_of(req) for pool in self.pools]
        if copies[0] is None or None in copies or num_cached < copies[0].first:
            return 0
        return self._num_tokens[req.rid]

    def restore(self, req: CachedRequest) -> None:
        """Copy the K/V back into the request's private pages, which must be allocated already.

        Raises InvariantViolation if a copy is incomplete.
        """
        num_tokens = self._num_tokens[req.rid]
        shared = [req.num_shared, *(pool.held[req.rid].num_shared for pool in self._more_pools)]
        pages = self._device_pages(req, 0)
        for pool, num_shared, (begin, held) in zip(self.pools, shared, pages, strict=True):
            pool.restore(req, begin + num_shared, held[num_shared:])
        del self._num_tokens[req.rid]
        self._count("kv_restored_tokens_total", num_tokens - req.num_shared * self.page_size)

    def discard(self, req: CachedRequest) -> None:
        """Free the copy of a request that has ended or that resumes without its copy."""
        self._num_tokens.pop(req.rid, None)
        for pool in self.pools:
            pool.discard(req)

    def take_copies(self) -> PageCopies | None:
        """Return the page copies for the plan that is being built; None if there are none.

        Frees the host pages from which K/V is restored.
        """
        first, *more = [pool.take_copies() for pool in self.pools]
        others = tuple(PoolCopies(number, *ways) for number, ways in enumerate(more, 1) if any(ways))
        return PageCopies(*first, others) if any(first) or others else None

    def _device_pages(self, req: CachedRequest, first: int) -> Iterator[tuple[int, list[int]]]:
        """Yield for each pool a page index, and the request's pages from this index on.

        first: the page index for the first pool; the other pools yield all pages that the request holds in them.
        """
        yield first, req.pages[first:]
        for pool in self._more_pools:
            held = pool.held[req.rid]
            yield held.first, held.pages

    def _pays(self, num_tokens: int, num_pages: int) -> bool:
        """Return True if restoring the pages is estimated to take less time than a prefill of all tokens."""
        return self._restore_token_s * num_pages * self.page_size < self._recompute_token_s * num_tokens
