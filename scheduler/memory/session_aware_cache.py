"""Implements streaming sessions as a wrapper around any prefix cache, so that the scheduler loop has no session code.

Between turns, a session keeps the K/V of its committed tokens in a slot. A slot is pinned only while a turn that uses
it is running. Otherwise its pages are evictable, the last pages first. Slots and the nodes of the inner cache share one
LRU order. Evicted pages are recomputed from the session's tokens, which ``SessionController`` keeps.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from .allocator import PageAllocator
from .cached_request import CachedRequest
from .ledger import Ledger, PageOwner
from .prefix_cache import BasePrefixCache, MatchResult


@dataclass(slots=True, eq=False)
class SessionSlot:
    """The K/V of a session's committed tokens, in whole pages.

    The pages before index ``first`` are shared pages of the inner cache. Every access to the slot also accesses those
    shared pages, so they are never evicted before the slot.
    """

    session: str  # key of the session, which is never reused
    first: int = 0  # page index of the first of ``pages``
    pages: list[int] = field(default_factory=list)
    pinned_by: str = ""  # request id of the running turn; "" while the slot is evictable
    last_access: int = 0  # the value of the cache's LRU clock at the last access
    closed: bool = False  # True if the session is closed; the slot is then freed when its running turn ends
    is_tree_node: ClassVar[bool] = False

    @property
    def tag(self) -> str:
        """The slot's name in messages."""
        return f"the slot of session {self.session}"

    @property
    def is_locked(self) -> bool:
        """True while a turn that uses the slot is running."""
        return bool(self.pinned_by)

    @property
    def end(self) -> int:
        """The page index after the last page of the slot."""
        return self.first + len(self.pages)

    def restore_to_req(self, req: CachedRequest) -> None:
        """Share the slot's pages with ``req``, which already has the pages before ``first``.

        The slot keeps its pages, so a turn that was not admitted or was retracted can attach again with the same
        result.
        """
        self.pinned_by = req.rid
        req.pages += self.pages
        req.num_shared = len(req.pages)

    def save_from_req(self, req: CachedRequest, num_pages: int, ledger: Ledger) -> int:
        """Move the request's private pages before index ``num_pages`` to the slot. Return their number."""
        if self.pinned_by != req.rid:  # the turn did not use the slot, so all earlier pages belong to the inner cache
            self.first, self.pinned_by = req.num_shared, req.rid
        new = req.pages[req.num_shared : num_pages]
        ledger.move(tuple(new), req, self)
        self.pages += new
        req.num_shared += len(new)
        return len(new)


@dataclass(slots=True)
class SessionMatch(MatchResult):
    """A match that ends with the pages of a slot."""

    slot: SessionSlot | None = None
    inner: MatchResult = field(default_factory=MatchResult)  # the part of the match before the slot


class SessionAwareCache:
    """Delegates requests without a session to the inner cache. ``BasePrefixCache`` documents the methods."""

    def __init__(self, inner: BasePrefixCache, allocator: PageAllocator) -> None:
        self.inner = inner
        self.session_held_pages = 0
        self.evictable_session_pages = 0
        self._allocator = allocator
        self._slots: OrderedDict[str, SessionSlot] = OrderedDict()
        self._turns: dict[str, SessionSlot] = {}  # by request id, from ``begin_turn`` to ``end_turn``
        self._unpinned: OrderedDict[int, SessionSlot] = OrderedDict()  # slots with pages, least recently used first

    @property
    def evictable_pages(self) -> int:
        """Delegates to the inner cache."""
        return self.inner.evictable_pages

    @property
    def protected_pages(self) -> int:
        """Delegates to the inner cache."""
        return self.inner.protected_pages

    @property
    def access_clock(self) -> int:
        """Delegates to the inner cache, so that slots and tree nodes share one LRU order."""
        return self.inner.access_clock

    def match_prefix(self, req: CachedRequest, limit: int | None = None) -> MatchResult:
        """Return the match of the inner cache, followed by the pages of the session's slot.

        The slot is not used if the match of the inner cache ends before the slot begins or reaches the slot's end, if
        ``limit`` is given, or if prompt log-probabilities have yet to be computed.
        """
        slot = self._turns.get(req.rid)
        whole = self.inner.match_prefix(req, limit)
        size = len(whole.pages)
        if slot is None or limit is not None or req.needs_prompt_logprobs or not slot.first <= size < slot.end:
            return whole
        before = self.inner.match_prefix(req, slot.first)
        pages = before.pages + slot.pages
        return SessionMatch(pages, before.num_locked, before.node, before.num_in_node, slot=slot, inner=before)

    def attach(self, req: CachedRequest, match: MatchResult) -> None:
        """Pin the turn's slot if the match includes it; otherwise free the pages of the slot."""
        if isinstance(match, SessionMatch) and match.slot is not None:
            self.inner.attach(req, match.inner)
            self._pin(match.slot)
            match.slot.restore_to_req(req)
            return
        slot = self._turns.get(req.rid)
        if slot is not None:
            self._empty(slot)
        self.inner.attach(req, match)

    def publish(self, req: CachedRequest, num_pages: int) -> None:
        """Delegate to the inner cache. Do nothing for a turn that uses a slot: its pages go to the slot at its end."""
        slot = self._turns.get(req.rid)
        if slot is None or slot.pinned_by != req.rid:
            self.inner.publish(req, num_pages)

    def cache_finished_req(self, req: CachedRequest, num_pages: int) -> None:
        """Save the pages of a turn to the slot of its session. Delegate requests without a session to the inner cache.

        If the session is closed, the pages of a turn that does not use the slot go to the inner cache.
        """
        slot = self._turns.get(req.rid)
        if slot is None or (slot.closed and slot.pinned_by != req.rid):
            self.inner.cache_finished_req(req, num_pages)
        elif not slot.closed:
            self.session_held_pages += slot.save_from_req(req, num_pages, self._allocator.ledger)

    def release(self, req: CachedRequest) -> None:
        """Release ``req`` in the inner cache.

        If it is a turn that uses a slot, unpin the slot, which becomes the most recently used one.
        """
        self.inner.release(req)
        slot = self._turns.get(req.rid)
        if slot is not None and slot.pinned_by == req.rid:
            slot.pinned_by = ""
            self._unpin(slot)
            if slot.closed:
                self._empty(slot)

    def discard(self, node: object) -> None:
        """Delegate to the inner cache. A slot that continues discarded pages is freed when its next turn starts."""
        self.inner.discard(node)

    def evict(self, num_pages: int, accessed_before: int | None = None) -> int:
        """See ``BasePrefixCache``. Nodes and slots are evicted in one LRU order, the last pages of a slot first."""
        freed = 0
        while freed < num_pages and self._unpinned:
            slot = next(iter(self._unpinned.values()))
            if accessed_before is not None and slot.last_access >= accessed_before:
                break
            freed += self.inner.evict(num_pages - freed, slot.last_access)
            if freed < num_pages:
                freed += self._trim(slot, max(len(slot.pages) - (num_pages - freed), 0))
        return freed + self.inner.evict(num_pages - freed, accessed_before)

    def clear(self) -> None:
        """Clear the inner cache and free the K/V of all sessions. Sessions keep their tokens."""
        for slot in list(self._unpinned.values()):
            self._empty(slot)
        self.inner.clear()

    def exclusively_locked_pages(self, req: CachedRequest) -> int:
        """See ``BasePrefixCache``. The number includes the pages of the slot that the turn uses."""
        slot = self._turns.get(req.rid)
        pinned = len(slot.pages) if slot is not None and slot.pinned_by == req.rid else 0
        return self.inner.exclusively_locked_pages(req) + pinned

    def begin_turn(self, session: str, rid: str) -> None:
        """Register the request ``rid`` as a turn of ``session``."""
        slot = self._slots.get(session)
        if slot is None:
            slot = self._slots[session] = SessionSlot(session)
        self._turns[rid] = slot

    def end_turn(self, rid: str) -> None:
        """Remove a turn that has ended. Its memory must have been released."""
        self._turns.pop(rid, None)

    def close(self, session: str) -> None:
        """Free the session's K/V: now, or, if a turn that uses the slot is running, when that turn is released."""
        slot = self._slots.pop(session, None)
        if slot is not None:
            slot.closed = True
            if not slot.pinned_by:
                self._empty(slot)

    def truncate(self, session: str, num_tokens: int) -> None:
        """Free the pages of the session's slot that hold tokens after the first ``num_tokens``."""
        slot = self._slots.get(session)
        if slot is not None:
            self._trim(slot, max(num_tokens // self._allocator.page_size - slot.first, 0))

    def held_pages(self, session: str) -> int:
        """Return the number of pages in the session's slot."""
        return len(self._slots[session].pages) if session in self._slots else 0

    @property
    def num_turns(self) -> int:
        """Number of turns that have not ended."""
        return len(self._turns)

    def slots(self) -> list[SessionSlot]:
        """Return all slots, including those of closed sessions that still have an open turn."""
        return list({id(slot): slot for slot in [*self._slots.values(), *self._turns.values()]}.values())

    def owners(self) -> Iterator[tuple[PageOwner, Sequence[int]]]:
        """See ``AuditedCache``. Yields the owners of the inner cache and the slots."""
        yield from self.inner.owners()
        for slot in self.slots():
            yield slot, slot.pages

    def next_owners(self, share: float) -> list[tuple[PageOwner, Sequence[int]]]:
        """See ``AuditedCache``."""
        seen = list(self.inner.next_owners(share))
        for _ in range(math.ceil(len(self._slots) * share)):
            name, slot = self._slots.popitem(last=False)
            self._slots[name] = slot
            seen.append((slot, slot.pages))
        return seen

    def validate(self, running: Sequence[CachedRequest]) -> list[str]:
        """See ``AuditedCache``."""
        errors = self.inner.validate(running)
        slots = self.slots()
        held = sum(len(slot.pages) for slot in slots)
        evictable = sum(len(slot.pages) for slot in slots if not slot.pinned_by)
        if (held, evictable) != (self.session_held_pages, self.evictable_session_pages):
            counted = f"slots count {self.session_held_pages} pages, {self.evictable_session_pages} of them evictable"
            errors.append(f"{counted}; a recount finds {held} and {evictable}")
        runs = {req.rid for req in running}
        errors += [
            f"{slot.tag} is pinned by {slot.pinned_by}, which is not running"
            for slot in slots
            if slot.pinned_by not in {*runs, ""}
        ]
        if {id(slot) for slot in slots if slot.pages and not slot.pinned_by} != set(self._unpinned):
            errors.append("the eviction order does not contain exactly the evictable slots")
        return errors

    def drop_pages(self, pages: Collection[int]) -> set[int]:
        """See ``AuditedCache``. Empties every slot that owns one of ``pages``; the sessions keep their tokens."""
        for slot in self.slots():
            if any(page in pages for page in slot.pages):
                slot.pages = []
        return self.inner.drop_pages(pages)

    def rebuild_locks(self, running: Sequence[CachedRequest]) -> None:
        """See ``AuditedCache``."""
        self.inner.rebuild_locks(running)
        runs = {req.rid for req in running}
        self.session_held_pages = self.evictable_session_pages = 0
        self._unpinned.clear()
        for slot in self.slots():
            slot.pinned_by = slot.pinned_by if slot.pinned_by in runs else ""
            if slot.closed and not slot.pinned_by:
                slot.pages = []
            self.session_held_pages += len(slot.pages)
            if not slot.pinned_by:
                self._unpin(slot)

    def _unpin(self, slot: SessionSlot) -> None:
        slot.last_access = self.inner.access_clock
        if slot.pages:
            self._unpinned[id(slot)] = slot
            self.evictable_session_pages += len(slot.pages)

    def _pin(self, slot: SessionSlot) -> None:
        if self._unpinned.pop(id(slot), None) is not None:
            self.evictable_session_pages -= len(slot.pages)

    def _empty(self, slot: SessionSlot) -> None:
        self._trim(slot, 0)

    def _trim(self, slot: SessionSlot, keep: int) -> int:
        """Free all but the first ``keep`` pages of an unpinned slot. Return the number of pages freed."""
        freed = slot.pages[keep:]
        if not freed:
            return 0
        self._allocator.give(freed, slot)
        del slot.pages[keep:]
        self.session_held_pages -= len(freed)
        self.evictable_session_pages -= len(freed)
        if not slot.pages:
            self._unpinned.pop(id(slot), None)
        return len(freed)
