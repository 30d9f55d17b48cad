"""The host tier: what it copies, when a copy is worth it, and that restored K/V equals the original."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from ebbtide.errors import InvariantViolation
from ebbtide.messages import AbortReq, PoolInfo, RunnerInfo
from ebbtide.scheduler.memory.host_tier import HostTier
from ebbtide.scheduler.request import Phase

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
