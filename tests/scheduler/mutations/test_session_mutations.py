"""Seeded session bugs, known from other servers or caused by a small mistake. The random plays find all of them."""

from __future__ import annotations

import pytest

from ebbtide.scheduler.memory.prefix_cache import MatchResult
from ebbtide.scheduler.memory.session_aware_cache import SessionAwareCache
from ebbtide.scheduler.memory.session_slot import SessionSlot
from ebbtide.scheduler.request import Request
from ebbtide.scheduler.sessions.open_sessions import OpenSessions
from ebbtide.scheduler.sessions.session import Session
from ebbtide.scheduler.sessions.session_controller import SessionController

from ..session_play import Play
from .witnesses import Bug, Witness, noticed

Patch = pytest.MonkeyPatch
SEEDS = (*range(12), 17, 56)  # 5, 10, 17 and 56 lose no KV, so their reuse is exact


def play_all() -> None:
    for seed in SEEDS:
        Play(seed).run(150)


def restored_slot_is_emptied(patch: Patch) -> None:
    original = SessionSlot.restore_to_req

    def restore(self: SessionSlot, req: Request) -> None:
        original(self, req)
        self.pages = []

    patch.setattr(SessionSlot, "restore_to_req", restore)


def pinned_slot_is_evicted(patch: Patch) -> None:
    patch.setattr(SessionAwareCache, "_pin", lambda self, slot: None)


def slot_stays_pinned(patch: Patch) -> None:
    patch.setattr(SessionAwareCache, "_unpin", lambda self, slot: None)


def gap_before_the_slot_is_ignored(patch: Patch) -> None:
    original = SessionAwareCache.match_prefix

    def match(self: SessionAwareCache, req: Request, limit: int | None = None) -> MatchResult:
        slot = self._turns.get(req.rid)
        if slot is None or limit is not None or not slot.pages:
            return original(self, req, limit)
        match = self.inner.match_prefix(req, slot.first)
        match.pages += slot.pages
        match.tail, match.num_in_tail = slot, len(slot.pages)
        return match

    def first_page_is_lost(self: SessionAwareCache, num_pages: int, before: int | None = None) -> int:
        return self.inner.evict(num_pages, before) or evict(self, num_pages, before)

    evict = SessionAwareCache.evict
    patch.setattr(SessionAwareCache, "match_prefix", match)
    patch.setattr(SessionAwareCache, "evict", first_page_is_lost)


def slot_evicts_its_first_pages_first(patch: Patch) -> None:
    def trim(self: SessionAwareCache, slot: SessionSlot, keep: int) -> int:
        count = len(slot.pages) - keep
        gone = slot.pages[:count]
        self._allocator.give(gone, slot)
        del slot.pages[:count]
        self.session_held_pages -= count
        self.evictable_session_pages -= count
        if not slot.pages:
            self._unpinned.pop(id(slot), None)
        return count

    patch.setattr(SessionAwareCache, "_trim", trim)


def turn_with_a_slot_is_published(patch: Patch) -> None:
    patch.setattr(SessionAwareCache, "publish", lambda self, req, num_pages: self.inner.publish(req, num_pages))


def slot_begins_one_page_late(patch: Patch) -> None:
    original = SessionSlot.save_from_req

    def save(self: SessionSlot, req: Request, num_pages: int, ledger: object) -> int:
        fresh = self.pinned_by != req.rid
        count = original(self, req, num_pages, ledger)  # type: ignore[arg-type]
        if fresh and count:
            self.first += 1
        return count

    patch.setattr(SessionSlot, "save_from_req", save)


def half_a_page_is_saved(patch: Patch) -> None:
    original = SessionAwareCache.cache_finished_req

    def finished(self: SessionAwareCache, req: Request, num_pages: int) -> None:
        original(self, req, min(num_pages + 1, len(req.pages)))

    patch.setattr(SessionAwareCache, "cache_finished_req", finished)


def aborted_turn_is_committed(patch: Patch) -> None:
    original = SessionController.ended
    patch.setattr(SessionController, "ended", lambda self, req, *, finished: original(self, req, finished=True))


def finished_turn_is_not_committed(patch: Patch) -> None:
    original = SessionController.ended
    patch.setattr(SessionController, "ended", lambda self, req, *, finished: original(self, req, finished=False))


def overlapping_turn_is_accepted(patch: Patch) -> None:
    original = OpenSessions.find

    def find(self: OpenSessions, session_id: str, owner: str) -> Session:
        session = original(self, session_id, owner)
        session.open_turns.clear()
        return session

    patch.setattr(OpenSessions, "find", find)


def late_stop_string_is_ignored(patch: Patch) -> None:
    patch.setattr(SessionController, "truncate_last_turn", lambda self, rid, count: None)


def kv_is_not_truncated_after_a_late_stop_string(patch: Patch) -> None:
    patch.setattr(SessionAwareCache, "truncate", lambda self, session, num_tokens: None)


def close_leaks_the_slot(patch: Patch) -> None:
    patch.setattr(SessionAwareCache, "close", lambda self, session: self._slots.pop(session, None))


def detached_turn_is_saved(patch: Patch) -> None:
    original = SessionAwareCache.close

    def close(self: SessionAwareCache, session: str) -> None:
        slot = self._slots.get(session)
        if slot is not None and slot.pinned_by:
            self._slots.pop(session)
            return
        original(self, session)

    patch.setattr(SessionAwareCache, "close", close)


def running_turn_expires(patch: Patch) -> None:
    original = SessionController.expire_sessions

    def expire_sessions(self: SessionController, now: float) -> None:
        held = [(session, session.open_turns) for session in self._sessions if session.open_turns]
        for session, _ in held:
            session.open_turns = {}
        original(self, now)
        for session, turns in held:
            session.open_turns = turns

    patch.setattr(SessionController, "expire_sessions", expire_sessions)


def lease_outlives_its_turn(patch: Patch) -> None:
    patch.setattr(SessionAwareCache, "end_turn", lambda self, rid: None)


SESSION_BUGS: dict[Bug, Witness] = {
    restored_slot_is_emptied: Witness.LEDGER_AUDIT,
    pinned_slot_is_evicted: Witness.TREE,
    slot_stays_pinned: Witness.TREE,
    gap_before_the_slot_is_ignored: Witness.TEXT,
    slot_evicts_its_first_pages_first: Witness.EQUATION,
    turn_with_a_slot_is_published: Witness.TEXT,
    slot_begins_one_page_late: Witness.REUSE,
    half_a_page_is_saved: Witness.PLANNER,
    aborted_turn_is_committed: Witness.TEXT,
    finished_turn_is_not_committed: Witness.PLANNER,
    overlapping_turn_is_accepted: Witness.REFUSAL,
    late_stop_string_is_ignored: Witness.TEXT,
    kv_is_not_truncated_after_a_late_stop_string: Witness.PLANNER,
    close_leaks_the_slot: Witness.SESSION_BOOKS,
    detached_turn_is_saved: Witness.LEDGER_AUDIT,
    running_turn_expires: Witness.REFUSAL,
    lease_outlives_its_turn: Witness.SESSION_BOOKS,
}


@pytest.mark.slow
def test_the_plays_pass_without_a_seeded_bug() -> None:
    play_all()


@pytest.mark.slow
@pytest.mark.parametrize("bug", SESSION_BUGS, ids=lambda bug: bug.__name__)
def test_a_session_bug_is_noticed_by_its_check(bug: Bug) -> None:
    error, witness = noticed(bug, play_all)
    assert witness is SESSION_BUGS[bug], error
