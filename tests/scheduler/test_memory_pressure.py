"""check_decode_mem, retract_decode and release_req. Pages of 4 tokens unless said otherwise."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest

from ebbtide.messages import PressureEvent
from ebbtide.paging import pages_for
from ebbtide.scheduler.batching.new_token_ratio import NewTokenRatio
from ebbtide.scheduler.batching.queue import WaitingQueue
from ebbtide.scheduler.batching.scheduling_policies import default_policies
from ebbtide.scheduler.lifecycle import Lifecycle, ReleaseReason
from ebbtide.scheduler.memory.pool import Pool
from ebbtide.scheduler.metrics import SchedulerMetrics
from ebbtide.scheduler.outbox import Outbox
from ebbtide.scheduler.request import Phase, Request
from ebbtide.scheduler.request_memory import Memory
from ebbtide.scheduler.retraction import Retractor

from .make import pool, request, run


@dataclass
class Pressure:
    """A retractor over a pool, and the requests that run on it."""

    retractor: Retractor
    lifecycle: Lifecycle
    outbox: Outbox


def pressure(pages: Pool, running: list[Request] | None = None, policy: str = "length") -> Pressure:
    running = [] if running is None else running
    memory, outbox = Memory(pages, None, 3), Outbox()
    lifecycle = Lifecycle(0, WaitingQueue(), memory.release_req, outbox, SchedulerMetrics())
    lifecycle.running = running
    lifecycle.requests = {req.rid: req for req in running}
    retractor = Retractor(memory, lifecycle, NewTokenRatio(), default_policies(policy), outbox, audit=lambda: None)
    return Pressure(retractor, lifecycle, outbox)


def retract(pages: Pool, running: list[Request], policy: str = "length") -> tuple[PressureEvent, list[Request]]:
    """Call ``retract_decode``. Returns the event and its victims, which are removed from ``running``."""
    before = {req.rid: req for req in running}
    control = pressure(pages, running, policy)
    control.retractor.retract_decode(0.0)
    (event,) = control.outbox.output.events
    return event, [before[victim.rid] for victim in event.victims]


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
    assert pressure(pages).retractor.new_tokens_required_next_decode(running) == 8


def test_two_half_prefilled_prompts_that_fill_the_pool_are_pressure() -> None:
    pages = pool(4)
    running = [run(pages, request(f"r{index}", prompt=30, arrival=index), computed=8) for index in range(2)]
    control = pressure(pages).retractor
    assert control.new_tokens_required_next_decode(running) == 4
    assert not control.check_decode_mem(running)


def test_a_prefill_that_still_has_room_is_no_pressure() -> None:
    pages = pool(4)
    running = [run(pages, request(f"r{index}", prompt=30, arrival=index), computed=8 - index) for index in range(2)]
    assert pressure(pages).retractor.check_decode_mem(running)


def test_without_running_requests_the_demand_is_zero() -> None:
    assert pressure(pool(4)).retractor.check_decode_mem([])


def test_the_check_evicts_the_shortfall_and_no_more() -> None:
    pages = pool(4)
    pages.release_kv_cache(run(pages, request("old", prompt=13, arrival=9)), is_insert=True)
    running = full(pages, [4])
    assert pages.token_to_kv_pool_allocator.available_pages == 0
    assert pressure(pages).retractor.check_decode_mem(running)
    assert (pages.token_to_kv_pool_allocator.available_pages, pages.tree_cache.evictable_pages) == (1, 2)
    assert pages.evicted_pages == 1


def test_pages_and_tokens_are_not_mixed_up() -> None:
    """Fifteen rows at a page end, five free pages of 16 tokens: 80 free tokens do not hold 15 rows."""
    pages = pool(15 * 4 + 5, 16)
    running = full(pages, [64] * 15)
    control = pressure(pages).retractor
    assert not control.check_decode_mem(running)
    retract(pages, running)
    assert pages.token_to_kv_pool_allocator.available_pages >= len(running)


@pytest.mark.parametrize("seed", range(60))
def test_after_a_retraction_the_next_step_fits_and_with_one_victim_fewer_it_would_not(seed: int) -> None:
    rng = random.Random(seed)
    page_size = rng.choice([1, 4, 16, 64])
    lengths = [rng.randint(1, 200) for _ in range(rng.randint(2, 12))]
    held = sum(pages_for(length, page_size) for length in lengths)
    pages = pool(held, page_size)
    outputs = [rng.randint(1, length) for length in lengths]
    running = full(pages, lengths, outputs)
    control = pressure(pages).retractor
    if control.check_decode_mem(running):
        return
    before = list(running)
    event, victims = retract(pages, running)
    assert event.aborted is None
    assert control.check_decode_mem(running)
    order = sorted(before, key=lambda req: (req.num_outputs, -req.prompt_len, -req.arrival))
    assert victims == order[: len(victims)]
    without_last = [*running, victims[-1]]
    free = pages.token_to_kv_pool_allocator.available_pages - event.victims[-1].freed_tokens // page_size
    ends = sum(length % page_size == 0 for length in (len(req.known) - 1 for req in without_last))
    assert free < ends


def test_victims_keep_their_tokens_and_free_their_pages() -> None:
    pages = pool(4)
    running = full(pages, [8, 8], outputs=[5, 3])
    first, second = running
    tokens = list(second.known)
    event, victims = retract(pages, running)
    assert (victims, running) == ([second], [first])
    assert second.known == tokens
    assert (second.phase, second.pages, second.computed, second.row) == (Phase.WAITING, [], 0, None)
    assert (second.is_retracted, second.history.retraction_count, second.history.high_water) == (True, 1, 8)
    assert (event.victims[0].freed_tokens, event.victims[0].tokens_to_recompute) == (8, 8)
    assert (event.available_before, event.available_after) == (0, 8)


def test_the_last_request_is_aborted_if_it_does_not_fit_alone() -> None:
    pages = pool(2)
    running = full(pages, [8])
    (only,) = running
    event, victims = retract(pages, running)
    assert (event.aborted, victims, running) == (only.rid, [], [])
    assert only.phase is Phase.FINISHED
    assert only.history.retraction_count == 0


def test_the_last_request_continues_without_headroom() -> None:
    pages = pool(3)
    running = full(pages, [8, 3])
    event, _ = retract(pages, running)
    assert (event.aborted, len(running)) == (None, 1)


def test_a_request_whose_retraction_frees_no_page_is_skipped() -> None:
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
    _, victims = retract(pages, running)
    assert victims[0] is third


def test_protected_requests_are_never_victims() -> None:
    pages = pool(4)
    running = full(pages, [8, 8], outputs=[1, 8])
    running[0].protected = True
    assert [req.rid for req in retract(pages, running)[1]] == ["r1"]


def test_if_a_shrunken_pool_holds_only_protected_requests_the_youngest_is_retracted() -> None:
    pages = pool(4)
    running = full(pages, [8, 8], outputs=[1, 8])
    for req in running:
        req.protected = True
    assert [req.rid for req in retract(pages, running)[1]] == ["r1"]


def test_a_protected_prefill_without_a_page_retracts_others() -> None:
    pages = pool(5)
    first = run(pages, request("p", prompt=12, protected=True), computed=4)
    second = run(pages, request("u", prompt=14, outputs=1, arrival=1), computed=14)
    running = [first, second]
    control = pressure(pages).retractor
    assert not control.check_decode_mem(running)
    assert retract(pages, running)[1] == [second]


def test_a_finish_publishes_full_pages_and_an_abort_publishes_nothing() -> None:
    for why, cached in ((ReleaseReason.FINISH, 2), (ReleaseReason.ABORT, 0), (ReleaseReason.RETRACT, 0)):
        pages = pool(4)
        Memory(pages, None, 3).release_req(run(pages, request(prompt=10)), why)
        assert pages.tree_cache.evictable_pages == cached
        assert pages.token_to_kv_pool_allocator.available_pages == 4 - cached


def test_pages_in_the_tree_stay_there_when_their_request_is_retracted() -> None:
    pages = pool(4)
    req = run(pages, request(prompt=10))
    pages.publish(req, 8)
    Memory(pages, None, 3).release_req(req, ReleaseReason.RETRACT)
    assert (pages.tree_cache.evictable_pages, pages.tree_cache.protected_pages) == (2, 0)


def test_only_a_retraction_counts_as_one() -> None:
    for why, count in (
        (ReleaseReason.FINISH, 0),
        (ReleaseReason.ABORT, 0),
        (ReleaseReason.RETRACT, 1),
        (ReleaseReason.PREEMPT, 1),
    ):
        pages = pool(4)
        req = run(pages, request(prompt=10))
        Memory(pages, None, 3).release_req(req, why)
        assert req.history.retraction_count == count
        assert req.history.retracted_stain is bool(count)
