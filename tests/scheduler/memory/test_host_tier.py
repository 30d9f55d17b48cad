"""The host tier: what it copies, when a copy is worth it, and that restored K/V equals the original."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from ebbtide.errors import InvariantViolation
from ebbtide.messages import SWA_POOL, AbortReq, PoolInfo, RunnerInfo
from ebbtide.scheduler.memory.host_tier import HostTier
from ebbtide.scheduler.memory.sliding_window.window_pool import WindowPool
from ebbtide.scheduler.request import Phase
from ebbtide.scheduler.retraction import RetractReason

from ..loads import ample, assert_same, demand, play, random_load
from ..make import pool, request, run
from ..world import Shape, World, greedy, text

INFO = RunnerInfo(
    context_length=100,
    vocab_size=10,
    pools=(PoolInfo(16, 4),),
    num_rows=4,
    eos_token_ids=(),
    num_host_pages=8,
    recompute_token_s=10.0,
    restore_token_s=1.0,
)


def tier(**changes: float) -> tuple[HostTier, Counter[str]]:
    counted: Counter[str] = Counter()
    info = RunnerInfo(**{name: getattr(INFO, name) for name in INFO.__struct_fields__} | changes)
    return HostTier(info, lambda name, amount: counted.update({name: amount})), counted


def test_computed_pages_are_copied_and_restored_to_other_pages() -> None:
    host, counted = tier()
    pages = pool(16)
    req = run(pages, request(prompt=11))  # 10 tokens computed: pages 0, 1, 2
    assert host.offload_kv_cache(req, 0)
    copies = host.take_copies()
    assert copies is not None
    assert copies.to_host == [0, 0, 1, 1, 2, 2]
    req.pages = [7, 8, 9]
    assert host.restorable(req, 0) == 10
    host.restore(req)
    copies = host.take_copies()
    assert copies is not None
    assert (copies.to_host, copies.to_device) == ([], [0, 7, 1, 8, 2, 9])
    assert counted == {"kv_offloaded_tokens_total": 10, "kv_restored_tokens_total": 10}
    assert host.pools[0].accounting().available == 8
    assert host.take_copies() is None


def test_host_pages_that_the_next_plan_reads_are_not_freed_before_it() -> None:
    host, _ = tier(num_host_pages=3)
    pages = pool(16)
    first = run(pages, request("a", prompt=11))
    assert host.offload_kv_cache(first, 0)
    host.restore(first)
    assert not host.offload_kv_cache(run(pages, request("b", prompt=5, arrival=1)), 0)
    assert host.pools[0].accounting().uncached == 3
    host.take_copies()
    assert host.pools[0].accounting().available == 3


def test_pages_not_restored_yet_are_not_saved_again() -> None:
    host, _ = tier()
    req = run(pool(16), request(prompt=11))
    assert host.offload_kv_cache(req, 0)
    host.take_copies()
    host.restore(req)
    assert not host.offload_kv_cache(req, 0)
    host.take_copies()
    assert host.offload_kv_cache(req, 0)


def test_a_full_tier_falls_back_to_recompute() -> None:
    host, counted = tier(num_host_pages=2)
    assert not host.offload_kv_cache(run(pool(16), request(prompt=11)), 0)
    assert counted == {}


@pytest.mark.parametrize(("restore_token_s", "kept"), [(9.0, False), (8.0, True)])
def test_only_pages_that_are_cheaper_to_copy_than_to_compute_are_saved(restore_token_s: float, kept: bool) -> None:
    """10 tokens to compute at 10 s each, against 12 token slots (3 whole pages) to copy."""
    host, _ = tier(restore_token_s=restore_token_s)
    assert host.offload_kv_cache(run(pool(16), request(prompt=11)), 0) is kept


def test_without_computed_tokens_nothing_is_saved() -> None:
    host, _ = tier()
    assert not host.offload_kv_cache(run(pool(16), request(prompt=11), computed=0), 0)


def test_a_copy_whose_prefix_was_evicted_is_not_restored() -> None:
    host, _ = tier()
    req = run(pool(16), request(prompt=11))
    assert host.offload_kv_cache(req, 1)
    assert [host.restorable(req, cached) for cached in (0, 1, 2)] == [0, 10, 10]
    host.discard(req)
    assert host.restorable(req, 2) == 0
    assert host.pools[0].accounting().available == 8


SOMEBODY = request("somebody")
PRESSED = Shape(num_pages=14, num_rows=4, conservativeness=0.02, chunk=8)


def prompts(world: World, count: int = 3) -> World:
    for index in range(count):
        world.generate(f"r{index}", text(f"{index} prompt"), greedy(30, ignore_eos=True))
    return world


@pytest.mark.parametrize("overlap", [1, 2])
def test_restored_requests_give_the_same_tokens_and_compute_less(overlap: int) -> None:
    plain = prompts(World(replace(PRESSED, overlap=overlap)))
    kept = prompts(World(replace(PRESSED, overlap=overlap, host_pages=64)))
    assert {rid: outcome.tokens for rid, outcome in plain.run().items()} == {
        rid: outcome.tokens for rid, outcome in kept.run().items()
    }
    totals = kept.scheduler.state.metrics.totals
    assert totals["kv_restored_tokens_total"] > 0
    assert totals["num_recomputed_tokens_total"] < plain.scheduler.state.metrics.totals["num_recomputed_tokens_total"]
    assert any(victim.offloaded for event in kept.events for victim in event.victims)
    gauges = kept.scheduler.snapshot().gauges
    assert (gauges["kv_available_tokens{pool=host}"], gauges["kv_uncached_tokens{pool=host}"]) == (256, 0)


def test_an_abort_while_retracted_frees_the_copy() -> None:
    world = prompts(World(replace(PRESSED, host_pages=64)))
    tier = world.scheduler.state.host_tier
    assert tier is not None
    while not tier.pools[0].copies():
        world.step()
    for rid in list(world.scheduler.state.requests):
        world.send(AbortReq(rid, "client"))
    world.run()
    assert tier.pools[0].accounting().available == 64


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(24))
def test_random_loads_with_a_host_tier_give_the_tokens_of_an_ample_pool(seed: int) -> None:
    load = random_load(seed, aborts=seed % 2 == 0)
    page_size = (1, 4, 16)[seed % 3]
    expected = play(load, ample(page_size))
    pages = demand(expected)
    shape = Shape(
        num_pages=pages + pages // 6,
        page_size=page_size,
        num_rows=16,
        chunk=16,
        overlap=1 + seed % 2,
        conservativeness=0.02,
        host_pages=(pages // 2, 4 * pages)[seed % 4 // 2],
        retract_interval=(0, 5)[seed % 5 == 0],
    )
    assert_same(load, expected, play(load, shape))


def test_the_accounting_of_the_tier_is_checked() -> None:
    world = prompts(World(replace(PRESSED, host_pages=64)))
    tier = world.scheduler.state.host_tier
    assert tier is not None
    while not tier.pools[0].copies():
        world.step()
    world.checker.on_idle()
    (copy, *_) = tier.pools[0].copies()
    lost = copy.pages.pop()
    with pytest.raises(InvariantViolation, match=f"pool host: .*page {lost} is listed by no owner"):
        world.checker.on_idle()
    copy.pages.append(lost)
    tier.pools[0].allocator.ledger.move([lost], copy, SOMEBODY)
    with pytest.raises(InvariantViolation, match=f"page {lost} is listed by the host copy .* records request somebody"):
        world.checker.on_idle()
    tier.pools[0].allocator.ledger.move([lost], SOMEBODY, copy)
    copied: Any = copy.req
    copied.phase = Phase.FINISHED
    with pytest.raises(
        InvariantViolation, match="is listed by no owner, but the ledger records the host copy of request"
    ):
        world.checker.on_idle()


def test_the_cost_of_a_retraction_is_that_of_the_cheaper_of_copy_and_recompute() -> None:
    host, _ = tier()
    assert host.price(20) == 2
    assert host.price(33) == 33  # nine pages, and the host has eight
    dear, _ = tier(restore_token_s=20.0)
    assert dear.price(20) == 20


WINDOW = 18  # tokens: 5 pages of 4 before the page that a token is written to


def windowed(**changes: object) -> Shape:
    """``PRESSED`` with a pool of a sliding window, and host pages for both pools."""
    return replace(PRESSED, second=PoolInfo(16, 4, SWA_POOL, WINDOW), host_pages=64, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("cache", [True, False], ids=["radix", "no prefix cache"])
@pytest.mark.parametrize("overlap", [1, 2])
def test_all_pools_are_copied_and_restored_together(overlap: int, cache: bool) -> None:
    plain = prompts(World(replace(windowed(overlap=overlap, cache=cache), host_pages=0)))
    kept = prompts(World(windowed(overlap=overlap, cache=cache)))
    assert {rid: outcome.tokens for rid, outcome in plain.run().items()} == {
        rid: outcome.tokens for rid, outcome in kept.run().items()
    }
    totals = kept.scheduler.state.metrics.totals
    assert totals["kv_restored_tokens_total"] > 0
    assert totals["num_recomputed_tokens_total"] < plain.scheduler.state.metrics.totals["num_recomputed_tokens_total"]
    gauges = kept.scheduler.snapshot().gauges
    assert (gauges["kv_available_tokens{pool=host_swa}"], gauges["kv_uncached_tokens{pool=host_swa}"]) == (256, 0)


def retracted_after(num_outputs: int, shape: Shape) -> World:
    """A request with a prompt of 41 tokens, retracted once after ``num_outputs`` output tokens."""
    world = World(shape)
    world.generate("a", text("a prompt that is longer than its window...."[:41]), greedy(60, ignore_eos=True))
    while "a" not in world.outcomes or len(world.outcomes["a"].tokens) < num_outputs:
        world.step()
    (req,) = world.scheduler.state.running
    world.scheduler.planner.retractor.retract([req], RetractReason.TEST, world.now)
    return world


@pytest.mark.parametrize("lost", [False, True], ids=["window cached", "window evicted"])
def test_a_restored_request_gets_the_window_of_its_end_only(lost: bool) -> None:
    """Even if the tree has lost the window of the cached prompt, nothing is computed again."""
    world = retracted_after(30, Shape(second=PoolInfo(64, 4, SWA_POOL, WINDOW), host_pages=64))
    second = world.scheduler.state.kv_pools[1]
    assert isinstance(second, WindowPool)
    if lost:
        second.spans.evict(64)
    world.step()
    held = second.held["a"]
    assert held.first == (41 + 29) // 4 - 5
    assert held.num_shared == 0
    alone = World(Shape(num_pages=2000, second=PoolInfo(2000, 4, SWA_POOL, WINDOW)))
    alone.generate("a", text("a prompt that is longer than its window...."[:41]), greedy(60, ignore_eos=True))
    assert world.run()["a"].tokens == alone.run()["a"].tokens
    assert world.scheduler.state.metrics.totals["num_recomputed_tokens_total"] == 0


@pytest.mark.parametrize(("host_pages", "second_host_pages"), [(64, 5), (10, 64)], ids=["swa", "full"])
def test_a_request_is_copied_to_the_host_in_all_pools_or_in_none(host_pages: int, second_host_pages: int) -> None:
    """A request with 70 computed tokens holds 18 and 6 pages."""
    shape = Shape(second=PoolInfo(64, 4, SWA_POOL, WINDOW), host_pages=host_pages, second_host_pages=second_host_pages)
    tier = retracted_after(30, shape).scheduler.state.host_tier
    assert tier is not None
    assert [pool.copies() for pool in tier.pools] == [[], []]
    assert tier.price(70) == 70


def test_an_abort_while_retracted_frees_the_copies_in_all_pools() -> None:
    world = retracted_after(30, Shape(second=PoolInfo(64, 4, SWA_POOL, WINDOW), host_pages=64))
    tier = world.scheduler.state.host_tier
    assert tier is not None
    assert [len(copy.pages) for pool in tier.pools for copy in pool.copies()] == [18, 6]
    world.send(AbortReq("a", "client"))
    world.run()
    assert [pool.accounting().available for pool in tier.pools] == [64, 64]


def test_a_request_without_pages_for_all_its_tokens_computes_from_its_cached_ones() -> None:
    """The request resumes in a pool whose other pages a running request holds."""
    world = retracted_after(30, Shape(num_pages=36, second=PoolInfo(64, 4, SWA_POOL, WINDOW), host_pages=64))
    (req,) = world.scheduler.state.waiting
    pool = world.pool
    pool.tree_cache.attach(req, pool.tree_cache.match_prefix(req))
    pool.allocate_up_to(request("other"), 24 * 4)
    before = req.computed, list(req.pages)
    assert not world.scheduler.planner.admitter.memory.allocate_for_restore(req, 70)
    assert (req.computed, req.pages) == before
