"""Bugs seeded into the pool of a sliding window and its part of the prefix tree."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from ebbtide.messages import SWA_POOL, PoolInfo
from ebbtide.scheduler.memory.cached_request import CachedRequest
from ebbtide.scheduler.memory.node import Node
from ebbtide.scheduler.memory.sliding_window.span_store import SpanStore
from ebbtide.scheduler.memory.sliding_window.window_pool import WindowPool
from ebbtide.scheduler.memory.sliding_window.window_span import WindowSpan
from ebbtide.scheduler.memory.sliding_window.window_spans import WindowSpans
from ebbtide.scheduler.memory.tree_part import MatchPath

from ..loads import Arrival, ample, assert_same, demand, play, random_load, resent_conversations, trimmed_prefixes
from ..world import ALMOST_CERTAIN, Shape, World
from .witnesses import Bug, Witness, noticed

Patch = pytest.MonkeyPatch
pytestmark = pytest.mark.slow
WINDOW = 18  # tokens: 5 pages of 4 before the page that a token is written to


@cache
def expectations() -> list[tuple[list[Arrival], World, Shape]]:
    """Loads, their outcomes in an ample pool, and a shape whose window pool causes evictions and retractions."""
    cases = []
    loads = [random_load(1, count=16, aborts=True), random_load(2, count=16), resent_conversations()]
    for number, load in enumerate([*loads, trimmed_prefixes()]):
        expected = play(load, replace(ample(4), second=PoolInfo(6000, 4, SWA_POOL, WINDOW)))
        tight = PoolInfo(24, 4, SWA_POOL, WINDOW)
        pages = demand(expected) + 10 if number % 2 else 600
        shape = Shape(pages, num_rows=16, chunk=7, overlap=1 + number % 2, risk=ALMOST_CERTAIN, second=tight)
        cases.append((load, expected, shape))
    return cases


def play_all() -> None:
    for load, expected, shape in expectations():
        assert_same(load, expected, play(load, shape))


def window_page_freed_one_page_early(patch: Patch) -> None:
    original = WindowPool.settled

    def settled(self: WindowPool, req: CachedRequest) -> None:
        self.running._num_before -= 1
        original(self, req)
        self.running._num_before += 1

    patch.setattr(WindowPool, "settled", settled)
    patch.setattr(WindowPool, "validate", lambda self, running: [])


def pages_behind_the_window_are_kept(patch: Patch) -> None:
    patch.setattr(WindowPool, "settled", lambda self, req: None)


def window_page_leaks_behind_the_window(patch: Patch) -> None:
    """The first private page behind the window is removed from the request's list but not freed."""
    original = WindowPool.settled

    def settled(self: WindowPool, req: CachedRequest) -> None:
        held = self.held[req.rid]
        before = len(held.private)
        original(self, req)
        if len(held.private) < before and self.allocator._free:
            self.allocator._free.pop()

    patch.setattr(WindowPool, "settled", settled)


def window_page_freed_twice(patch: Patch) -> None:
    original = WindowPool.release_kv_cache

    def release(self: WindowPool, req: CachedRequest, *, is_insert: bool) -> None:
        pages = self.held[req.rid].private[:1]
        original(self, req, is_insert=is_insert)
        self.allocator._free += pages

    patch.setattr(WindowPool, "release_kv_cache", release)


def private_window_pages_are_not_freed_at_the_end(patch: Patch) -> None:
    def release(self: WindowPool, req: CachedRequest, *, is_insert: bool) -> None:
        self.running.num_private -= len(self.held.pop(req.rid).private)

    patch.setattr(WindowPool, "release_kv_cache", release)


def match_ends_where_the_window_is_not_cached(patch: Patch) -> None:
    """A match may end one page before the whole window is cached."""
    original = WindowSpans.usable_match

    def usable(self: WindowSpans, path: MatchPath) -> int:
        self._num_before -= 1
        found = original(self, path)
        self._num_before += 1
        return found

    patch.setattr(WindowSpans, "usable_match", usable)


def attached_request_does_not_lock_its_window(patch: Patch) -> None:
    original = WindowPool.attached

    def attached(self: WindowPool, req: CachedRequest, node: Node) -> None:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(WindowSpans, "lock", lambda self, node, first, end: None)
            original(self, req, node)

    patch.setattr(WindowPool, "attached", attached)


def locked_window_pages_are_evicted(patch: Patch) -> None:
    """If no other pages are left, pages that running requests read are evicted."""
    original = WindowSpans.evict

    def evict(self: WindowSpans, num_pages: int, **limits: float) -> int:
        freed = original(self, num_pages, **limits)
        for span in list(self.store.spans.values()):
            if freed < num_pages and span.pages:
                self.store.free(span, span.pages[:1])
                self.store.evictable_pages += 1
                self.store.protected_pages -= 1
                freed += 1
        return freed

    patch.setattr(WindowSpans, "evict", evict)


def windows_stay_locked_after_the_request(patch: Patch) -> None:
    patch.setattr(WindowSpans, "unlock", lambda self, node, first, end: None)


def locks_do_not_move_with_the_window(patch: Patch) -> None:
    patch.setattr(WindowSpans, "advance", lambda self, node, first, new_first, end: None)


def split_moves_a_window_page_to_the_wrong_half(patch: Patch) -> None:
    original = SpanStore.split

    def split(self: SpanStore, upper: Node, lower: Node) -> None:
        original(self, upper, lower)
        if upper in self.spans:
            top, bottom = self.spans[upper].pages, self.spans[lower].pages
            top[-1], bottom[0] = bottom[0], top[-1]

    patch.setattr(SpanStore, "split", split)


def split_leaves_the_upper_half_unlocked(patch: Patch) -> None:
    original = SpanStore.split

    def split(self: SpanStore, upper: Node, lower: Node) -> None:
        original(self, upper, lower)
        if upper in self.spans:
            top = self.spans[upper]
            self.evictable_pages += top.num_locked
            self.protected_pages -= top.num_locked
            top.users, top.num_locked = {}, 0

    patch.setattr(SpanStore, "split", split)


def eviction_of_windows_is_not_counted(patch: Patch) -> None:
    original = SpanStore.free

    def free(self: SpanStore, span: WindowSpan, pages: list[int]) -> None:
        before = self.evictable_pages
        original(self, span, pages)
        self.evictable_pages = before

    patch.setattr(SpanStore, "free", free)


def evicted_leaf_keeps_its_window(patch: Patch) -> None:
    """A leaf is removed from the tree, but its window pages stay allocated."""

    def trimmed(self: WindowSpans, leaf: Node, num_pages: int) -> None:
        span = self.store.spans.pop(leaf, None)
        if span is not None:
            self.store.evictable_pages -= len(span.pages)

    patch.setattr(WindowSpans, "trimmed", trimmed)


def runner_keeps_replaced_window_pages(patch: Patch) -> None:
    original = WindowPool.published

    def published(self: WindowPool, req: CachedRequest, node: Node, start: int) -> None:
        sent = self.held[req.rid].sent
        original(self, req, node, start)
        self.held[req.rid].sent = sent

    patch.setattr(WindowPool, "published", published)


def published_window_pages_stay_private(patch: Patch) -> None:
    """The pages move to the tree, but the request also keeps them as its own."""
    original = WindowPool.published

    def published(self: WindowPool, req: CachedRequest, node: Node, start: int) -> None:
        held = self.held[req.rid]
        before, num_private = held.cached_end, self.running.num_private
        original(self, req, node, start)
        self.running.num_private, held.cached_end = num_private, before

    patch.setattr(WindowPool, "published", published)


WINDOW_BUGS: dict[Bug, Witness] = {
    window_page_freed_one_page_early: Witness.TEXT,
    pages_behind_the_window_are_kept: Witness.LEDGER_AUDIT,
    window_page_leaks_behind_the_window: Witness.EQUATION,
    window_page_freed_twice: Witness.EQUATION,
    private_window_pages_are_not_freed_at_the_end: Witness.EQUATION,
    match_ends_where_the_window_is_not_cached: Witness.WINDOW,
    attached_request_does_not_lock_its_window: Witness.PLAN_AUDIT,
    locked_window_pages_are_evicted: Witness.WINDOW,
    windows_stay_locked_after_the_request: Witness.LEDGER_AUDIT,
    locks_do_not_move_with_the_window: Witness.WINDOW,
    split_moves_a_window_page_to_the_wrong_half: Witness.SWEEP,
    split_leaves_the_upper_half_unlocked: Witness.WINDOW,
    eviction_of_windows_is_not_counted: Witness.EQUATION,
    evicted_leaf_keeps_its_window: Witness.EQUATION,
    runner_keeps_replaced_window_pages: Witness.TEXT,
    published_window_pages_stay_private: Witness.EQUATION,
}


def test_the_loads_pass_without_a_seeded_bug() -> None:
    play_all()
    assert any(event.pool == SWA_POOL for load, _, shape in expectations() for event in play(load, shape).events)


@pytest.mark.parametrize("bug", WINDOW_BUGS, ids=lambda bug: bug.__name__)
def test_a_bug_in_the_window_pool_is_noticed_by_its_check(bug: Bug) -> None:
    expectations()
    error, witness = noticed(bug, play_all)
    assert witness is WINDOW_BUGS[bug], error
