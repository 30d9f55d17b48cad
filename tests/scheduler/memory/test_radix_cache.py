"""The radix tree compared with a slow model, and shapes that break recursive or quadratic implementations."""

from __future__ import annotations

import random

import pytest

from ebbtide.messages import SamplingParams, TextParams
from ebbtide.scheduler.memory.allocator import PageAllocator
from ebbtide.scheduler.memory.pool import Pool
from ebbtide.scheduler.memory.radix_cache import RadixCache
from ebbtide.scheduler.request import Phase, Request


class Bench:
    """A pool with a tree and requests that own pages, without a scheduler."""

    def __init__(self, num_pages: int, page_size: int) -> None:
        self.allocator = PageAllocator(num_pages, page_size)
        self.cache = RadixCache(self.allocator)
        self.pool = Pool(self.allocator, self.cache)
        self.running: list[Request] = []
        self._serial = 0

    def start(self, tokens: list[int], namespace: str = "") -> Request:
        """A running request with pages for all its tokens."""
        req = Request(
            rid=f"r{self._serial}",
            arrival=self._serial,
            prompt_len=len(tokens),
            known=list(tokens),
            sampling=SamplingParams(max_tokens=1),
            text=TextParams(),
            page_size=self.allocator.page_size,
            namespace=namespace,
        )
        self._serial += 1
        self.cache.attach(req, self.cache.match_prefix(req))
        req.computed = len(req.pages) * req.page_size
        self.pool.allocate_up_to(req, len(tokens))
        req.num_confirmed = req.computed = len(tokens)
        req.phase = Phase.RUNNING
        self.running.append(req)
        return req

    def end(self, req: Request, *, is_insert: bool = True) -> None:
        """Release a request. Its pages enter the tree by default."""
        self.pool.release_kv_cache(req, is_insert=is_insert)
        self.running.remove(req)

    def put(self, tokens: list[int], namespace: str = "") -> None:
        """Start and release a request."""
        self.end(self.start(tokens, namespace))

    def matched(self, tokens: list[int], namespace: str = "") -> int:
        """Number of cached tokens that a new request with these tokens would find."""
        req = Request(
            "probe", 0, len(tokens), tokens, SamplingParams(max_tokens=1), TextParams(), self.allocator.page_size
        )
        req.namespace = namespace
        return len(self.cache.match_prefix(req).pages) * self.allocator.page_size

    def check(self) -> None:
        """Check the accounting, the structure and the locks."""
        accounting = self.pool.accounting()
        assert accounting.accounted == accounting.total
        assert accounting.uncached == self.pool.recount(self.running)
        assert not self.pool.find_ownership_errors(self.running)
        assert not self.cache.validate(self.running)


def test_a_prefix_is_found_in_whole_pages() -> None:
    bench = Bench(16, 4)
    bench.put(list(range(10)))
    assert bench.matched([*range(10), 77]) == 8
    assert bench.matched([*range(6), 77, 78, 79]) == 4
    assert bench.matched([5, 6, 7, 8, 9]) == 0
    bench.check()


def test_one_token_is_always_left_to_compute() -> None:
    bench = Bench(16, 4)
    bench.put(list(range(8)))
    assert bench.matched(list(range(8))) == 4
    assert bench.matched(list(range(9))) == 8


def test_namespaces_share_no_pages() -> None:
    bench = Bench(16, 4)
    bench.put(list(range(8)), "salt:a")
    assert bench.matched(list(range(9)), "salt:a") == 8
    assert bench.matched(list(range(9))) == 0
    assert bench.matched(list(range(9)), "salt:b") == 0


def test_the_root_of_an_empty_namespace_is_removed() -> None:
    bench = Bench(4, 4)
    for index in range(50):
        bench.put(list(range(8)), f"salt:{index}")
        bench.end(bench.start([1], f"salt:short{index}"))
    bench.pool.evict_from_tree_cache(4)
    assert len(bench.cache._roots) == 0  # the root is removed with its last page
    bench.check()


def test_duplicates_of_cached_pages_are_replaced_and_freed() -> None:
    bench = Bench(16, 4)
    first, second = bench.start(list(range(12))), bench.start(list(range(12)))
    second.sent_pages = 3
    bench.pool.publish(first, 12)
    bench.pool.publish(second, 12)
    assert second.pages == first.pages
    assert second.sent_pages == 0
    assert bench.allocator.available_pages == 13
    bench.check()


def test_only_the_part_that_differs_stays_private() -> None:
    bench = Bench(16, 4)
    first, second = bench.start(list(range(12))), bench.start([*range(8), 90, 91, 92, 93])
    bench.pool.publish(first, 12)
    second.sent_pages = 3
    bench.pool.publish(second, 12)
    assert second.pages[:2] == first.pages[:2]
    assert second.pages[2] != first.pages[2]
    bench.check()


def test_locked_pages_are_not_evicted() -> None:
    bench = Bench(8, 4)
    held = bench.start(list(range(16)))
    bench.pool.publish(held, 16)
    bench.put(list(range(100, 116)))
    assert bench.cache.evict(100) == 4
    assert (bench.cache.evictable_pages, bench.cache.protected_pages) == (0, 4)
    bench.end(held)
    assert bench.cache.evict(100) == 4
    bench.check()


def test_eviction_frees_only_the_shortfall_from_the_end_of_the_oldest_leaf() -> None:
    bench = Bench(8, 4)
    bench.put(list(range(16)))
    bench.put(list(range(100, 116)))
    assert bench.cache.evict(1) == 1
    assert bench.matched([*range(16), 1]) == 12
    assert bench.matched([*range(100, 116), 1]) == 16
    bench.check()


def test_use_protects_from_eviction() -> None:
    bench = Bench(8, 4)
    bench.put(list(range(16)))
    bench.put(list(range(100, 116)))
    bench.put(list(range(16)))
    bench.cache.evict(4)
    assert bench.matched([*range(16), 1]) == 16
    assert bench.matched([*range(100, 116), 1]) == 0


def test_match_prefix_changes_nothing() -> None:
    bench = Bench(8, 4)
    bench.put(list(range(16)))
    before = [(node.tag, node.last_access, node.locks) for node in bench.cache.walk()]
    assert bench.matched([*range(10), 99, 98, 97]) == 8
    assert [(node.tag, node.last_access, node.locks) for node in bench.cache.walk()] == before


def test_pages_of_a_request_released_without_insertion_are_free() -> None:
    bench = Bench(8, 4)
    bench.end(bench.start(list(range(16))), is_insert=False)
    assert bench.allocator.available_pages == 8
    assert bench.matched([*range(16), 1]) == 0


@pytest.mark.parametrize("page_size", [1, 16])
def test_a_chain_of_thousands_of_nodes_works_and_is_freed(page_size: int) -> None:
    length = 3000
    bench = Bench(length + 200 // page_size + 8, page_size)
    tokens = [index % 251 for index in range(length * page_size)]
    for end in range(page_size, length * page_size, 7 * page_size):
        bench.put(tokens[:end])
    held = bench.start(tokens)
    bench.check()
    bench.end(held)
    assert bench.matched([*tokens[: 50 * page_size], 255, 255]) == 50 * page_size
    assert bench.cache.evict(10 * length) == length
    bench.check()


def test_repeated_use_of_one_leaf_does_not_grow_the_eviction_heap() -> None:
    bench = Bench(8, 4)
    for _ in range(2000):
        bench.put(list(range(16)))
    assert len(bench.cache._leaves) < 100


@pytest.mark.parametrize("seed", range(30))
def test_the_tree_agrees_with_a_slow_model(seed: int) -> None:
    """Without eviction, the longest match is the longest common prefix with any published request, in whole pages."""
    rng = random.Random(seed)
    page_size = rng.choice([1, 2, 4])
    bench = Bench(4000 // page_size, page_size)
    published: list[list[int]] = []
    running: list[Request] = []
    for _ in range(60):
        base = rng.choice(published) if published and rng.random() < 0.6 else []
        tokens = base[: rng.randint(0, len(base))] + [rng.randint(0, 2) for _ in range(rng.randint(1, 12))]
        expected = max((_common(tokens[:-1], other, page_size) for other in published), default=0)
        assert bench.matched(tokens) == expected
        running.append(bench.start(tokens))
        if rng.random() < 0.3:
            early = rng.randint(0, len(tokens))
            bench.pool.publish(running[-1], early)
            published.append(tokens[: early // page_size * page_size])
        if rng.random() < 0.7:
            req = running.pop(rng.randrange(len(running)))
            insert = rng.random() < 0.7
            bench.end(req, is_insert=insert)
            if insert:
                published.append(req.known[: len(req.known) // page_size * page_size])
        bench.check()


@pytest.mark.parametrize("seed", range(20))
def test_the_accounting_balances_under_random_eviction(seed: int) -> None:
    rng = random.Random(seed)
    bench = Bench(24, 2)
    running: list[Request] = []
    for _ in range(200):
        tokens = [rng.randint(0, 1) for _ in range(rng.randint(1, 9))]
        if bench.pool.usable_pages > 6:
            running.append(bench.start(tokens))
        if running and rng.random() < 0.6:
            bench.end(running.pop(rng.randrange(len(running))), is_insert=rng.random() < 0.8)
        wanted, evictable = rng.randint(0, 4), bench.cache.evictable_pages
        assert bench.cache.evict(wanted) == min(wanted, evictable)
        bench.check()


def _common(tokens: list[int], other: list[int], page_size: int) -> int:
    same = 0
    while same < min(len(tokens), len(other)) and tokens[same] == other[same]:
        same += 1
    return same // page_size * page_size
