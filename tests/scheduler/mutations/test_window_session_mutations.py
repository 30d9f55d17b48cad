"""Bugs seeded into what session slots and host copies keep in the pool of a sliding window."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import pytest

from ebbtide.messages import SWA_POOL, PoolInfo
from ebbtide.plan import PageCopies
from ebbtide.scheduler.memory.cached_request import CachedRequest
from ebbtide.scheduler.memory.host_pool import HostPool
from ebbtide.scheduler.memory.host_tier import HostTier
from ebbtide.scheduler.memory.ledger import PageOwner
from ebbtide.scheduler.memory.node import PathElement
from ebbtide.scheduler.memory.sliding_window.span_store import SpanStore
from ebbtide.scheduler.memory.sliding_window.window_pool import WindowPool
from ebbtide.scheduler.memory.sliding_window.window_span import WindowSpan
from ebbtide.scheduler.memory.sliding_window.window_spans import WindowSpans
from ebbtide.scheduler.memory.tree_part import MatchPath

from ..loads import Arrival, ample, assert_same, demand, play, random_load
from ..session_play import Play
from ..world import ALMOST_CERTAIN, Shape, World
from .witnesses import Bug, Witness, noticed

Patch = pytest.MonkeyPatch
pytestmark = pytest.mark.slow
SEEDS = (243, 5, 200, 213, 217)  # 243 and 5 lose no KV, so their reuse is exact
WINDOW = 5


def play_sessions() -> None:
    for seed in SEEDS:
        Play(seed, WINDOW).run(150)


def window_does_not_move_to_the_slot(patch: Patch) -> None:
    patch.setattr(WindowPool, "extended", lambda self, req, tail, num_new: None)


def slot_gets_its_window_in_reverse_order(patch: Patch) -> None:
    original = WindowSpans.extend

    def extend(self: WindowSpans, tail: PathElement, own: list[int], num_read: int, owner: PageOwner) -> None:
        original(self, tail, own[::-1], num_read, owner)

    patch.setattr(WindowSpans, "extend", extend)


def window_of_a_slot_is_not_locked_for_its_turn(patch: Patch) -> None:
    original = WindowPool.attached

    def attached(self: WindowPool, req: CachedRequest, end: PathElement) -> None:
        with pytest.MonkeyPatch.context() as inner:
            if not end.is_tree_node:
                inner.setattr(WindowSpans, "lock", lambda self, node, first, end: None)
            original(self, req, end)

    patch.setattr(WindowPool, "attached", attached)


def freed_slot_keeps_its_window(patch: Patch) -> None:
    original = WindowSpans.trimmed

    def trimmed(self: WindowSpans, element: PathElement, num_pages: int) -> None:
        if element.is_tree_node:
            original(self, element, num_pages)

    patch.setattr(WindowSpans, "trimmed", trimmed)


def window_of_a_slot_stays_locked_after_its_turn(patch: Patch) -> None:
    original = WindowSpans.unlock

    def unlock(self: WindowSpans, node: PathElement, first: int, end: int) -> None:
        if node.is_tree_node:
            original(self, node, first, end)

    patch.setattr(WindowSpans, "unlock", unlock)


def slot_is_matched_without_its_window(patch: Patch) -> None:
    original = WindowSpans.usable_match

    def usable(self: WindowSpans, path: MatchPath) -> int:
        if path and not path[-1][0].is_tree_node:
            return sum(same for _, same in path)
        return original(self, path)

    patch.setattr(WindowSpans, "usable_match", usable)
    patch.setattr(WindowPool, "is_usable", lambda self, tail: True)


def window_of_the_last_commit_leaves_with_the_running_turn(patch: Patch) -> None:
    original = WindowSpans.advance

    def advance(self: WindowSpans, node: PathElement, first: int, new_first: int, end: int) -> None:
        original(self, node, first, new_first, end)
        span = self.store.spans.get(node)
        if span is not None and not node.is_tree_node:
            self.store.free(span, span.pages[: len(span.pages) - span.num_locked])

    patch.setattr(WindowSpans, "advance", advance)


def windows_of_slots_count_as_cached(patch: Patch) -> None:
    def count(self: SpanStore, span: WindowSpan, num_evictable: int, num_locked: int) -> None:
        self.evictable_pages += num_evictable
        self.protected_pages += num_locked

    patch.setattr(SpanStore, "_count", count)


def eviction_from_a_slot_is_not_counted(patch: Patch) -> None:
    original = SpanStore.free

    def free(self: SpanStore, span: WindowSpan, pages: list[int]) -> None:
        before = self.session_held_pages
        original(self, span, pages)
        self.session_held_pages = before

    patch.setattr(SpanStore, "free", free)


def pages_of_a_commit_get_locks_of_their_own(patch: Patch) -> None:
    """The lock of the running turn on a slot is not extended to the pages that it adds."""
    original = WindowSpans.extend

    def extend(self: WindowSpans, tail: PathElement, own: list[int], num_read: int, owner: PageOwner) -> None:
        original(self, tail, own, num_read, owner)
        span = self.store.spans.get(tail)
        if span is not None and num_read:
            self.store.relock(span, num_read + len(own), num_read)

    patch.setattr(WindowSpans, "extend", extend)


SESSION_WINDOW_BUGS: dict[Bug, Witness] = {
    window_does_not_move_to_the_slot: Witness.REUSE,
    slot_gets_its_window_in_reverse_order: Witness.TEXT,
    window_of_a_slot_is_not_locked_for_its_turn: Witness.PLAN_AUDIT,
    freed_slot_keeps_its_window: Witness.LEDGER_AUDIT,
    window_of_a_slot_stays_locked_after_its_turn: Witness.LEDGER_AUDIT,
    slot_is_matched_without_its_window: Witness.WINDOW,
    window_of_the_last_commit_leaves_with_the_running_turn: Witness.REUSE,
    windows_of_slots_count_as_cached: Witness.LEDGER_AUDIT,
    eviction_from_a_slot_is_not_counted: Witness.EQUATION,
    pages_of_a_commit_get_locks_of_their_own: Witness.WINDOW,
}


@cache
def host_cases() -> list[tuple[list[Arrival], World, Shape]]:
    """Loads, their outcomes in an ample pool, and a shape whose requests are copied to the host and back."""
    cases = []
    for number, load in enumerate([random_load(1, count=10, aborts=True), random_load(2, count=10)]):
        expected = play(load, replace(ample(4), second=PoolInfo(6000, 4, SWA_POOL, 18)))
        shape = Shape(
            demand(expected) + 10,
            num_rows=16,
            chunk=7,
            overlap=1 + number,
            risk=ALMOST_CERTAIN,
            second=PoolInfo(24, 4, SWA_POOL, 18),
            host_pages=200,
            retract_interval=5 * number,
        )
        cases.append((load, expected, shape))
    return cases


def play_with_host() -> None:
    for load, expected, shape in host_cases():
        assert_same(load, expected, play(load, shape))


def window_is_copied_in_reverse_order(patch: Patch) -> None:
    original = HostPool.save

    def save(self: HostPool, req: CachedRequest, first: int, device_pages: Sequence[int]) -> None:
        original(self, req, first, device_pages if self.name == "host" else device_pages[::-1])

    patch.setattr(HostPool, "save", save)


def copies_of_the_window_are_not_planned(patch: Patch) -> None:
    original = HostTier.take_copies

    def take(self: HostTier) -> PageCopies | None:
        copies = original(self)
        return None if copies is None else PageCopies(copies.to_host, copies.to_device)

    patch.setattr(HostTier, "take_copies", take)


def host_window_is_never_freed(patch: Patch) -> None:
    original = HostPool.discard

    def discard(self: HostPool, req: CachedRequest) -> None:
        if self.name == "host":
            original(self, req)

    patch.setattr(HostPool, "discard", discard)


def window_does_not_move_before_a_restore(patch: Patch) -> None:
    """The request keeps the window of the cached tokens; the restored pages follow it."""
    original = WindowPool.settled

    def settled(self: WindowPool, req: CachedRequest) -> None:
        if req.steps_in_flight or req.row_ready:  # type: ignore[attr-defined]
            original(self, req)

    patch.setattr(WindowPool, "settled", settled)


def window_of_another_end_is_restored(patch: Patch) -> None:
    """The host pages are taken from the beginning of the copy instead of from the index of the device page."""
    original = HostPool.restore

    def restore(self: HostPool, req: CachedRequest, first: int, device_pages: Sequence[int]) -> None:
        copy = self._copies[req.rid]
        if self.name != "host" and first > copy.first:
            shift = first - copy.first
            copy.pages[:] = copy.pages[shift:] + copy.pages[:shift]
        original(self, req, first, device_pages)

    patch.setattr(HostPool, "restore", restore)


HOST_WINDOW_BUGS: dict[Bug, Witness] = {
    window_is_copied_in_reverse_order: Witness.TEXT,
    copies_of_the_window_are_not_planned: Witness.TEXT,
    host_window_is_never_freed: Witness.LEDGER_AUDIT,
    window_does_not_move_before_a_restore: Witness.RESTORE,
    window_of_another_end_is_restored: Witness.TEXT,
}


def test_the_plays_pass_without_a_seeded_bug() -> None:
    play_sessions()
    play_with_host()
    totals = [play(load, shape).scheduler.state.metrics.totals for load, _, shape in host_cases()]
    assert all(total["kv_restored_tokens_total"] for total in totals)


@pytest.mark.parametrize("bug", SESSION_WINDOW_BUGS, ids=lambda bug: bug.__name__)
def test_a_bug_in_the_window_of_a_slot_is_noticed_by_its_check(bug: Bug) -> None:
    error, witness = noticed(bug, play_sessions)
    assert witness is SESSION_WINDOW_BUGS[bug], error


@pytest.mark.parametrize("bug", HOST_WINDOW_BUGS, ids=lambda bug: bug.__name__)
def test_a_bug_in_the_host_copy_of_a_window_is_noticed_by_its_check(bug: Bug) -> None:
    host_cases()
    error, witness = noticed(bug, play_with_host)
    assert witness is HOST_WINDOW_BUGS[bug], error
