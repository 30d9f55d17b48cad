"""Bugs seeded on purpose: the loads, the books and the text must catch every one of them.

Each entry replaces one function by a version with a typical mistake. The unmutated scheduler passes the same loads, so
whatever is caught is caught because of the mistake.
"""

from __future__ import annotations

import re
from dataclasses import replace as with_fields
from functools import cache

import pytest
from msgspec.structs import replace

from ebbtide.plan import PlanItem
from ebbtide.scheduler.batching.plan_items import PlanItems
from ebbtide.scheduler.batching.queue import WaitingQueue
from ebbtide.scheduler.item_results import ItemResults
from ebbtide.scheduler.lifecycle import Lifecycle, ReleaseReason
from ebbtide.scheduler.memory.node import Node
from ebbtide.scheduler.memory.radix_cache import RadixCache
from ebbtide.scheduler.outbox import Outbox
from ebbtide.scheduler.request import Request
from ebbtide.scheduler.request_memory import Memory

from ..loads import (
    Arrival,
    aborted_prefills,
    ample,
    assert_same,
    demand,
    play,
    random_load,
    resent_conversations,
    trimmed_prefixes,
)
from ..world import Shape, World
from .accounting_bugs import ACCOUNTING
from .witnesses import Bug, Witness, noticed

Patch = pytest.MonkeyPatch
pytestmark = pytest.mark.slow
OWNERS = re.compile(r"request [\w.]+|a tree node of \d+ pages|the free list|quarantine\b|no owner|nobody|requests")
SEEDS = (1, 2, 4, 5, 7, 10, 11, 13)


@cache
def expectations() -> list[tuple[list[Arrival], World, Shape]]:
    """Loads, their outcomes in an ample pool, and the shape of a small pool."""
    cases = []
    for number, seed in enumerate(SEEDS):
        load = random_load(seed, aborts=number % 2 == 1)
        page_size = (4, 1, 4, 16)[number % 4]
        expected = play(load, ample(page_size))
        pages = demand(expected)
        shape = Shape(
            num_pages=pages + pages // 4,
            page_size=page_size,
            num_rows=(32, 6)[number % 2],
            chunk=(7, 32)[number // 2 % 2],
            overlap=(1, 2)[number // 4 % 2],
            conservativeness=0.02,
        )
        cases.append((load, expected, shape))
    for load in (resent_conversations(), aborted_prefills(), trimmed_prefixes()):
        expected = play(load, ample(4))
        cases.append((load, expected, Shape(num_pages=demand(expected) + 2, page_size=4, num_rows=4, chunk=6)))
    return cases


def play_all() -> None:
    """Run every load in its small pool, also with sizes at which the ends of chunks and pages coincide."""
    for load, expected, shape in expectations():
        retracting = with_fields(shape, chunk=max(shape.page_size, 4), num_rows=3, retract_interval=6, host_pages=64)
        for variant in (shape, retracting):
            assert_same(load, expected, play(load, variant))


def stale_page_table(patch: Patch) -> None:
    """A switch to cached pages is not sent to the runner."""
    original = RadixCache._use_cached_pages

    def switch(self: RadixCache, node: Node, req: Request) -> None:
        sent = req.sent_pages
        original(self, node, req)
        req.sent_pages = sent

    patch.setattr(RadixCache, "_use_cached_pages", switch)


def publish_on_abort(patch: Patch) -> None:
    """An aborted request publishes its planned tokens instead of its computed tokens."""
    original = Memory.release_req

    def release(self: Memory, req: Request, why: ReleaseReason) -> bool:
        if why is ReleaseReason.ABORT:
            req.num_confirmed = len(req.pages) * req.page_size
            why = ReleaseReason.FINISH
        return original(self, req, why)

    patch.setattr(Memory, "release_req", release)


def stale_row_state(patch: Patch) -> None:
    """A resumed request uses the sampling state of the previous request in its new row."""
    original = Request.reset_for_retract

    def reset(self: Request, *, max_retractions: int) -> None:
        ready = self.row_ready
        original(self, max_retractions=max_retractions)
        self.row_ready = ready

    patch.setattr(Request, "reset_for_retract", reset)


def retract_keeps_the_number_of_sent_pages(patch: Patch) -> None:
    original = Request.reset_for_retract

    def reset(self: Request, *, max_retractions: int) -> None:
        sent = self.sent_pages
        original(self, max_retractions=max_retractions)
        self.sent_pages = sent

    patch.setattr(Request, "reset_for_retract", reset)


def retract_drops_a_token(patch: Patch) -> None:
    original = Request.reset_for_retract

    def reset(self: Request, *, max_retractions: int) -> None:
        original(self, max_retractions=max_retractions)
        if self.num_outputs:
            self.known.pop()

    patch.setattr(Request, "reset_for_retract", reset)


def resume_without_outputs(patch: Patch) -> None:
    """After a retraction, the row's penalties are computed from the prompt only."""
    original = PlanItems._item

    def item(self: PlanItems, req: Request, *args: object, **kwargs: object) -> PlanItem:
        made = original(self, req, *args, **kwargs)  # type: ignore[arg-type]
        if made.init is None:
            return made
        return replace(made, init=replace(made.init, known=made.init.known[: req.prompt_len]))

    patch.setattr(PlanItems, "_item", item)


def match_everything(patch: Patch) -> None:
    """A prefix hit may cover the last known token, so that there is nothing left to sample from."""
    original = RadixCache.match_prefix

    def match(self: RadixCache, req: Request) -> object:
        req.known.append(-1)
        found = original(self, req)
        req.known.pop()
        return found

    patch.setattr(RadixCache, "match_prefix", match)


def match_by_first_tokens(patch: Patch) -> None:
    """Pages count as equal if the first page of their node is equal."""

    def num_equal_pages(self: Node, tokens: list[int], start: int) -> int:
        size = len(self.tokens) // len(self.pages)
        return max(1, min(len(self.pages), (len(tokens) - start) // size))

    patch.setattr(Node, "num_equal_pages", num_equal_pages)


def evict_the_head_of_a_leaf(patch: Patch) -> None:
    original = RadixCache._trim

    def trim(self: RadixCache, leaf: Node, num_pages: int) -> int:
        if num_pages < len(leaf.pages):
            leaf.pages = leaf.pages[num_pages:] + leaf.pages[:num_pages]
        return original(self, leaf, num_pages)

    patch.setattr(RadixCache, "_trim", trim)


def token_delivered_twice(patch: Patch) -> None:
    original = Outbox.emit

    def emit(self: Outbox, req: Request, *args: object) -> None:
        original(self, req, *args)  # type: ignore[arg-type]
        if req.history.retracted_stain:
            original(self, req, *args)  # type: ignore[arg-type]

    patch.setattr(Outbox, "emit", emit)


def late_result_lost(patch: Patch) -> None:
    """The sixth output token of a request is added without any other processing."""
    original = ItemResults._sampled

    def sampled(self: ItemResults, req: Request, tokens: list[int], logprobs: object) -> None:
        if req.num_outputs == 5:
            req.samples_in_flight -= 1
            req.known += tokens
            return
        original(self, req, tokens, logprobs)  # type: ignore[arg-type]

    patch.setattr(ItemResults, "_sampled", sampled)


def retracted_request_not_queued(patch: Patch) -> None:
    original = Lifecycle.requeue

    def requeue(self: Lifecycle, req: Request, *, front: bool, counted: bool, now: float = 0.0) -> None:
        original(self, req, front=front, counted=counted, now=now)
        self.waiting.remove(req)

    patch.setattr(Lifecycle, "requeue", requeue)


def sibling_choices_not_queued(patch: Patch) -> None:
    patch.setattr(Lifecycle, "queue_siblings", lambda self, req: req.sibling_choices.clear())


def queue_head_skipped(patch: Patch) -> None:
    original = WaitingQueue.put

    def put(self: WaitingQueue, req: Request, *, front: bool) -> None:
        if not front:
            original(self, req, front=front)

    patch.setattr(WaitingQueue, "put", put)


OTHERS: dict[Bug, Witness] = {
    stale_page_table: Witness.TEXT,
    publish_on_abort: Witness.TEXT,
    stale_row_state: Witness.TEXT,
    retract_keeps_the_number_of_sent_pages: Witness.TEXT,
    retract_drops_a_token: Witness.TEXT,
    resume_without_outputs: Witness.TEXT,
    match_everything: Witness.PLANNER,
    match_by_first_tokens: Witness.TEXT,
    evict_the_head_of_a_leaf: Witness.TEXT,
    token_delivered_twice: Witness.TEXT,
    late_result_lost: Witness.TEXT,
    retracted_request_not_queued: Witness.NO_PROGRESS,
    sibling_choices_not_queued: Witness.NO_PROGRESS,
    queue_head_skipped: Witness.NO_PROGRESS,
}


def test_the_loads_pass_without_a_seeded_bug() -> None:
    play_all()


@pytest.mark.parametrize("bug", ACCOUNTING, ids=lambda bug: bug.__name__)
def test_an_accounting_bug_is_noticed_by_its_check_which_names_the_owner(bug: Bug) -> None:
    expectations()
    error, witness = noticed(bug, play_all)
    assert witness is ACCOUNTING[bug], error
    assert OWNERS.search(str(error).partition("; last moves:")[0])


@pytest.mark.parametrize("bug", OTHERS, ids=lambda bug: bug.__name__)
def test_another_bug_is_noticed_by_its_check(bug: Bug) -> None:
    expectations()
    error, witness = noticed(bug, play_all)
    assert witness is OTHERS[bug], error
