"""Bugs seeded into the pool of recurrent states and its checkpoints in the prefix tree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import pytest

from ebbtide.scheduler.memory.cached_request import CachedRequest
from ebbtide.scheduler.memory.node import Node, PathElement
from ebbtide.scheduler.memory.recurrent_state.checkpoints import Checkpoints
from ebbtide.scheduler.memory.recurrent_state.state_pool import StatePool
from ebbtide.scheduler.memory.recurrent_state.state_slots import SavedState, StateSlots
from ebbtide.scheduler.memory.tree_part import MatchPath

from ..loads import Arrival, ample, assert_same, demand, play, random_load, resent_conversations, trimmed_prefixes
from ..world import ALMOST_CERTAIN, Shape, World, greedy, text
from .witnesses import Bug, Witness, noticed

Patch = pytest.MonkeyPatch
pytestmark = pytest.mark.slow


@cache
def expectations() -> list[tuple[list[Arrival], World, Shape]]:
    """Loads, their outcomes in an ample pool, and a shape whose pools cause evictions, waiting and retractions."""
    base = Shape(num_pages=600, num_rows=16, chunk=7, risk=ALMOST_CERTAIN)
    cases = []
    for load, shape in (
        (random_load(1, count=16, aborts=True), replace(base, state_slots=24)),
        (random_load(2, count=16), replace(base, state_slots=5, num_pages=0, overlap=2, save_every=4)),
        (resent_conversations(), replace(base, state_slots=22)),
        (trimmed_prefixes(), replace(base, state_slots=200, num_pages=0, overlap=2)),
        (branches(), replace(base, state_slots=24, chunk=64)),
    ):
        expected = play(load, replace(ample(4), state_slots=200))
        cases.append((load, expected, replace(shape, num_pages=shape.num_pages or demand(expected) + 10)))
    return cases


def branches() -> list[Arrival]:
    """Prompts that continue the same 20 tokens differently: the second one splits the node of the first one."""
    prompts = [text("the same first words" + 5 * letter) for letter in "abcdef"]
    return [Arrival(40 * index, f"r{index}", prompt, greedy(6)) for index, prompt in enumerate(prompts)]


def play_all() -> None:
    for load, expected, shape in expectations():
        assert_same(load, expected, play(load, shape))


def working_slot_is_not_freed(patch: Patch) -> None:
    def release(self: StatePool, req: CachedRequest, *, is_insert: bool) -> None:
        held = self.held.pop(req.rid, None)
        if held is not None:
            self._drop_saved(req, held, held.saved)
            self.uncached -= len(held.pages)

    patch.setattr(StatePool, "release_kv_cache", release)


def working_slot_is_freed_twice(patch: Patch) -> None:
    original = StatePool.release_kv_cache

    def release(self: StatePool, req: CachedRequest, *, is_insert: bool) -> None:
        slots = self._of(req).pages[:1]
        original(self, req, is_insert=is_insert)
        self.allocator._free += slots

    patch.setattr(StatePool, "release_kv_cache", release)


def copies_of_an_ended_request_are_not_freed(patch: Patch) -> None:
    original = StatePool._drop_saved

    def drop(self: StatePool, req: CachedRequest, held: StateSlots, states: Sequence[SavedState]) -> None:
        if req.rid in self.held:
            original(self, req, held, states)
        else:
            self.uncached -= len(states)

    patch.setattr(StatePool, "_drop_saved", drop)


def state_of_the_prefix_is_not_copied(patch: Patch) -> None:
    patch.setattr(StatePool, "source", lambda self, req: -1)


def request_starts_from_another_checkpoint(patch: Patch) -> None:
    original = StatePool.source

    def source(self: StatePool, req: CachedRequest) -> int:
        others = [pages[0] for _, pages in self.checkpoints.owners()]
        return others[0] if original(self, req) >= 0 and others else original(self, req)

    patch.setattr(StatePool, "source", source)


def state_one_token_too_far_is_kept(patch: Patch) -> None:
    """The working slot of a request that ends always becomes a checkpoint."""
    original = StatePool.release_kv_cache

    def release(self: StatePool, req: CachedRequest, *, is_insert: bool) -> None:
        if req.rid in self.held and self.held[req.rid].node is not None:
            req.computed = req.num_confirmed = self.held[req.rid].num_cached * self._tree_page_size
        original(self, req, is_insert=is_insert)

    patch.setattr(StatePool, "release_kv_cache", release)


def copy_is_attributed_to_the_page_before(patch: Patch) -> None:
    original = StatePool.save

    def save(self: StatePool, req: CachedRequest, end: int) -> int | None:
        slot = original(self, req, end)
        if slot is not None and end > self._tree_page_size:
            self.held[req.rid].saved[-1].num_tokens -= self._tree_page_size
        return slot

    patch.setattr(StatePool, "save", save)


def split_moves_the_checkpoint_to_the_wrong_half(patch: Patch) -> None:
    def split(self: StatePool, upper: Node, lower: Node) -> None:
        checkpoint = self.checkpoints._by_node.pop(lower, None)
        if checkpoint is not None:
            checkpoint.node = upper
            self.checkpoints._by_node[upper] = checkpoint

    patch.setattr(StatePool, "split", split)


def evicted_leaf_keeps_its_checkpoint(patch: Patch) -> None:
    patch.setattr(StatePool, "trimmed", lambda self, leaf, num_pages: None)


def match_ends_where_no_state_is_known(patch: Patch) -> None:
    patch.setattr(Checkpoints, "usable_match", lambda self, path: sum(same for _, same in path))


def match_ends_inside_a_node(patch: Patch) -> None:
    """The checkpoint of a node is used although only some of its pages match."""

    def usable(self: Checkpoints, path: MatchPath) -> int:
        found = end = 0
        for node, same in path:
            end += same
            if node in self._by_node:
                found = end
        return found

    patch.setattr(Checkpoints, "usable_match", usable)


def second_copy_for_a_node_leaks(patch: Patch) -> None:
    original = StatePool.published

    def published(self: StatePool, req: CachedRequest, node: Node, start: int) -> None:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(StatePool, "_drop_saved", lambda self, req, held, states: held.saved.clear())
            original(self, req, node, start)

    patch.setattr(StatePool, "published", published)


def evicted_checkpoint_stays_usable(patch: Patch) -> None:
    """The slot of an evicted checkpoint is freed, but the node still refers to it."""

    def remove(self: Checkpoints, node: PathElement) -> None:
        checkpoint = self._by_node.get(node)
        if checkpoint is not None and self._allocator.ledger.owner(checkpoint.pages[0]) is checkpoint:
            self._allocator.give(checkpoint.pages, checkpoint)

    patch.setattr(Checkpoints, "remove", remove)


def copy_shares_the_working_slot(patch: Patch) -> None:
    """No copy is made: the checkpoint is the working slot, which later steps advance."""
    original = StatePool.save

    def save(self: StatePool, req: CachedRequest, end: int) -> int | None:
        slot = original(self, req, end)
        return None if slot is None else self.held[req.rid].pages[0]

    patch.setattr(StatePool, "save", save)


def copy_is_dropped_before_its_step_is_settled(patch: Patch) -> None:
    """A slot is given to another request in the plan that makes the copy."""
    original = StatePool.save

    def save(self: StatePool, req: CachedRequest, end: int) -> int | None:
        slot = original(self, req, end)
        if slot is not None:
            self.held[req.rid].saved[-1].is_settled = True
            self._droppable[req.rid, slot] = req
        return slot

    patch.setattr(StatePool, "save", save)


def dropped_copy_stays_listed(patch: Patch) -> None:
    """A copy is dropped for another request, but its request still lists the slot."""

    def evict(self: StatePool, num_pages: int) -> bool:
        self.checkpoints.evict(num_pages - self.allocator.available_pages)
        while self.allocator.available_pages < num_pages and self._droppable:
            (_, slot), req = self._droppable.popitem(last=False)
            self._free(req, [slot])
        return self.allocator.available_pages >= num_pages

    patch.setattr(StatePool, "evict_from_tree_cache", evict)


def first_step_names_no_slot(patch: Patch) -> None:
    patch.setattr(StatePool, "take_unsent", lambda self, req: (0, []))


STATE_BUGS: dict[Bug, Witness] = {
    working_slot_is_not_freed: Witness.EQUATION,
    working_slot_is_freed_twice: Witness.EQUATION,
    copies_of_an_ended_request_are_not_freed: Witness.EQUATION,
    state_of_the_prefix_is_not_copied: Witness.TEXT,
    request_starts_from_another_checkpoint: Witness.TEXT,
    state_one_token_too_far_is_kept: Witness.TEXT,
    copy_is_attributed_to_the_page_before: Witness.TEXT,
    split_moves_the_checkpoint_to_the_wrong_half: Witness.TEXT,
    evicted_leaf_keeps_its_checkpoint: Witness.LEDGER_AUDIT,
    match_ends_where_no_state_is_known: Witness.TEXT,
    match_ends_inside_a_node: Witness.TEXT,
    second_copy_for_a_node_leaks: Witness.EQUATION,
    evicted_checkpoint_stays_usable: Witness.EQUATION,
    copy_shares_the_working_slot: Witness.TEXT,
    copy_is_dropped_before_its_step_is_settled: Witness.TEXT,
    dropped_copy_stays_listed: Witness.EQUATION,
    first_step_names_no_slot: Witness.PLAN_AUDIT,
}


def test_the_loads_pass_without_a_seeded_bug() -> None:
    play_all()
    assert any(play(load, shape).outcomes for load, _, shape in expectations())


@pytest.mark.parametrize("bug", STATE_BUGS, ids=lambda bug: bug.__name__)
def test_a_bug_in_the_state_pool_is_noticed_by_its_check(bug: Bug) -> None:
    expectations()
    error, witness = noticed(bug, play_all)
    assert witness is STATE_BUGS[bug], error
