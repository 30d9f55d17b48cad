"""check_decode_mem, retract_decode and release_req. Pages of 4 tokens unless said otherwise."""

from __future__ import annotations

import random

import pytest

from ebbtide.paging import pages_for
from ebbtide.scheduler.batching.new_token_ratio import NewTokenRatio
from ebbtide.scheduler.batching.policies import RETRACT_POLICIES
from ebbtide.scheduler.memory.pool import Pool
from ebbtide.scheduler.pressure import Pressure, Retraction, Why
from ebbtide.scheduler.request import Phase, Request
from ebbtide.scheduler.state import Limits, State

from .make import pool, request, run


def pressure(pages: Pool, policy: str = "length") -> Pressure:
    state = State(pages, Limits(num_rows=0, context_length=1000), NewTokenRatio())
    return Pressure(state, RETRACT_POLICIES[policy])


def retract(pages: Pool, running: list[Request], policy: str = "length") -> Retraction:
    """retract_decode over a state in which just those run."""
    control = pressure(pages, policy)
    control._state.running = running
    return control.retract_decode(running)


def victims(event: Retraction) -> list[Request]:
    return [victim.req for victim in event.victims]


def full(pages: Pool, lengths: list[int], outputs: list[int] | None = None) -> list[Request]:
    """Decoding requests whose next token is at position ``length``."""
    made = [
        request(f"r{index}", prompt=length + 1 - extra, outputs=extra, arrival=index, page_size=pages.page_size)
        for index, (length, extra) in enumerate(zip(lengths, outputs or [1] * len(lengths), strict=True))
    ]
    return [run(pages, req) for req in made]


def test_demand_is_a_page_for_every_row_at_a_page_end() -> None:
    pages = pool(16)
    running = full(pages, [4, 5, 8, 11])
    assert pressure(pages).new_tokens_required_next_decode(running) == 8


def test_two_half_prefilled_prompts_that_fill_the_pool_are_pressure() -> None:
    pages = pool(4)
    running = [run(pages, request(f"r{index}", prompt=30, arrival=index), computed=8) for index in range(2)]
    control = pressure(pages)
    assert control.new_tokens_required_next_decode(running) == 4
    assert not control.check_decode_mem(running)


def test_a_prefill_that_still_has_room_is_no_pressure() -> None:
    pages = pool(4)
    running = [run(pages, request(f"r{index}", prompt=30, arrival=index), computed=8 - index) for index in range(2)]
    assert pressure(pages).check_decode_mem(running)


def test_nothing_running_needs_nothing() -> None:
    assert pressure(pool(4)).check_decode_mem([])


def test_the_check_evicts_the_shortfall_and_no_more() -> None:
    pages = pool(4)
    pages.release_kv_cache(run(pages, request("old", prompt=13, arrival=9)), is_insert=True)
    running = full(pages, [4])
    assert pages.token_to_kv_pool_allocator.available_pages == 0
    assert pressure(pages).check_decode_mem(running)
    assert (pages.token_to_kv_pool_allocator.available_pages, pages.tree_cache.evictable_pages) == (1, 2)
    assert pages.evicted_pages == 1


def test_pages_and_tokens_are_not_mixed_up() -> None:
    """Fifteen rows at a page end, five free pages of 16 tokens: 80 free tokens do not hold 15 rows."""
    pages = pool(15 * 4 + 5, 16)
    running = full(pages, [64] * 15)
    control = pressure(pages)
    assert not control.check_decode_mem(running)
    retract(pages, running)
    assert pages.token_to_kv_pool_allocator.available_pages >= len(running)


@pytest.mark.parametrize("seed", range(60))
def test_after_a_retraction_the_next_step_fits_and_one_victim_fewer_would_not_do(seed: int) -> None:
    rng = random.Random(seed)
    page_size = rng.choice([1, 4, 16, 64])
    lengths = [rng.randint(1, 200) for _ in range(rng.randint(2, 12))]
    held = sum(pages_for(length, page_size) for length in lengths)
    pages = pool(held, page_size)
    outputs = [rng.randint(1, length) for length in lengths]
    running = full(pages, lengths, outputs)
    control = pressure(pages)
    if control.check_decode_mem(running):
        return
    before = list(running)
    event = retract(pages, running)
    assert event.aborted is None
    assert control.check_decode_mem(running, headroom_pages=len(running) if len(running) > 1 else 0)
    order = sorted(before, key=lambda req: (req.num_outputs, -req.prompt_len, -req.arrival))
    assert victims(event) == order[: len(event.victims)]
    without_last = [*running, event.victims[-1].req]
    free = pages.token_to_kv_pool_allocator.available_pages - event.victims[-1].freed_pages
    ends = sum(length % page_size == 0 for length in (len(req.known) - 1 for req in without_last))
    assert free < ends + len(without_last)


def test_victims_keep_their_tokens_and_lose_their_memory() -> None:
    pages = pool(4)
    running = full(pages, [8, 8], outputs=[5, 3])
    first, second = running
    tokens = list(second.known)
    event = retract(pages, running)
    assert (victims(event), running) == ([second], [first])
    assert second.known == tokens
    assert (second.phase, second.pages, second.computed, second.row) == (Phase.WAITING, [], 0, None)
    assert (second.is_retracted, second.history.retraction_count, second.history.high_water) == (True, 1, 8)
    assert (event.victims[0].freed_pages, event.victims[0].lost_tokens) == (2, 8)
    assert (event.old_available_tokens, event.available_tokens) == (0, 8)


def test_the_last_request_is_given_up_when_it_alone_does_not_fit() -> None:
    pages = pool(2)
    running = full(pages, [8])
    (only,) = running
    event = retract(pages, running)
    assert (event.aborted, event.victims, running) == (only, [], [])
    assert only.history.retraction_count == 0


def test_the_last_request_goes_on_without_headroom() -> None:
    pages = pool(3)
    running = full(pages, [8, 3])
    event = retract(pages, running)
    assert (event.aborted, len(running)) == (None, 1)


def test_a_victim_whose_leaving_frees_nothing_is_skipped() -> None:
    """Two requests share all their pages; a third has pages of its own."""
    pages = pool(4)
    first = run(pages, request("a", prompt=8, outputs=1))
    pages.publish(first, 8)
    twin = request("b", prompt=8, outputs=1)
    twin.known[8] = 99
    run(pages, twin)
    third = run(pages, request("c", prompt=1, outputs=8, arrival=5))
    assert (twin.num_private, third.num_private) == (0, 2)
    running = [first, twin, third]
    event = retract(pages, running)
    assert event.victims[0].req is third


def test_protected_requests_are_never_victims() -> None:
    pages = pool(4)
    running = full(pages, [8, 8], outputs=[1, 8])
    running[0].protected = True
    assert [req.rid for req in victims(retract(pages, running))] == ["r1"]


def test_when_a_shrunken_pool_holds_protected_ones_only_the_youngest_leaves() -> None:
    pages = pool(4)
    running = full(pages, [8, 8], outputs=[1, 8])
    for req in running:
        req.protected = True
    assert [req.rid for req in victims(retract(pages, running))] == ["r1"]


def test_a_protected_prefill_without_a_page_makes_others_leave() -> None:
    pages = pool(5)
    first = run(pages, request("p", prompt=12, protected=True), computed=4)
    second = run(pages, request("u", prompt=14, outputs=1, arrival=1), computed=14)
    running = [first, second]
    control = pressure(pages)
    assert not control.check_decode_mem(running)
    assert victims(retract(pages, running)) == [second]


def test_a_finish_publishes_full_pages_and_an_abort_publishes_nothing() -> None:
    for why, cached in ((Why.FINISH, 2), (Why.ABORT, 0), (Why.RETRACT, 0)):
        pages = pool(4)
        control = pressure(pages)
        control.release_req(run(pages, request(prompt=10)), why)
        assert pages.tree_cache.evictable_pages == cached
        assert pages.token_to_kv_pool_allocator.available_pages == 4 - cached
        assert control._state.free_rows == [0]


def test_pages_in_the_tree_stay_there_when_their_request_is_retracted() -> None:
    pages = pool(4)
    req = run(pages, request(prompt=10))
    pages.publish(req, 8)
    pressure(pages).release_req(req, Why.RETRACT)
    assert (pages.tree_cache.evictable_pages, pages.tree_cache.protected_pages) == (2, 0)


def test_only_a_retraction_counts_as_one() -> None:
    for why, count in ((Why.FINISH, 0), (Why.ABORT, 0), (Why.RETRACT, 1), (Why.PREEMPT, 1)):
        pages = pool(4)
        req = run(pages, request(prompt=10))
        pressure(pages).release_req(req, why)
        assert req.history.retraction_count == count
        assert req.history.retracted_stain is bool(count)
