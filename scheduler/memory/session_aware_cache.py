"""Implements streaming sessions as a wrapper around any prefix cache, so that the scheduler loop has no session code.

Between turns, a session keeps the K/V of its committed tokens in a slot. A slot is pinned only while a turn that uses
it is running. Otherwise its pages are evictable, the last pages first. Slots and the nodes of the inner cache share one
LRU order. Evicted pages are recomputed from the session's tokens, which ``SessionController`` keeps.

With several pools, a slot has pages in each of them (``TailPart``). A slot from which no turn can continue any more,
because a pool has lost what the next token reads, is freed in all pools.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Collection, Iterator, Sequence

from ebbtide.messages import FULL_POOL

from .allocator import PageAllocator
from .cached_request import CachedRequest
from .ledger import PageOwner
from .node import PathElement, Tail
from .prefix_cache import BasePrefixCache, MatchResult
from .session_slot import SessionSlot
from .tree_part import TailPart


class SessionAwareCache:
    """Delegates requests without a session to the inner cache. ``BasePrefixCache`` documents the methods."""

    def __init__(self, inner: BasePrefixCache, allocator: PageAllocator, parts: Sequence[TailPart] = ()) -> None:
        """parts: the pages of slots in other pools."""
        self.inner = inner
        self.session_held_pages = 0
        self.evictable_session_pages = 0
        self._allocator = allocator
        self._slots: OrderedDict[str, SessionSlot] = OrderedDict()
        self._turns: dict[str, SessionSlot] = {}  # by request id, from ``begin_turn`` to ``end_turn``
        self._unpinned: OrderedDict[int, SessionSlot] = OrderedDict()  # slots with pages, least recently used first
        self._parts = parts
        for part in parts:
            part.on_eviction = self._evicted

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

    def match_prefix(self, req: CachedRequest, limit: int | None = None, tail: Tail | None = None) -> MatchResult:
        """Return the match of the inner cache, or a longer match that ends with pages of the session's slot.

        The slot is not used if ``limit`` is given, or if prompt log-probabilities have yet to be computed.
        """
        slot = self._turns.get(req.rid)
        whole = self.inner.match_prefix(req, limit)
        if slot is None or not slot.pages or limit is not None or req.needs_prompt_logprobs:
            return whole
        match = self.inner.match_prefix(req, tail=slot)
        return match if len(match.pages) > len(whole.pages) else whole

    def attach(self, req: CachedRequest, match: MatchResult) -> None:
        """Pin the turn's slot if the match includes it. Free the pages of the slot that the match does not include."""
        slot = self._turns.get(req.rid)
        if slot is not None:
            self._trim(slot, match.num_in_tail)
            if match.tail is slot:
                self._pin(slot)
        self.inner.attach(req, match)

    def publish(self, req: CachedRequest, num_pages: int) -> None:
        """Delegate to the inner cache. Do nothing for a turn that uses a slot: its pages go to the slot at its end."""
        slot = self._turns.get(req.rid)
        if slot is None or slot.pinned_by != req.rid:
            self.inner.publish(req, num_pages)

    def cache_finished_req(self, req: CachedRequest, num_pages: int) -> None:
        """Save the pages of a turn to the slot of its session. Delegate requests without a session to the inner cache.

        If the session is closed, the pages of a turn that does not use the slot go to the inner cache. The slot stays
        as it is if a pool lacks memory that the next turn would read. This can only happen if the turn ended before its
        last computed token, as at a stop string.
        """
        slot = self._turns.get(req.rid)
        if slot is None or (slot.closed and slot.pinned_by != req.rid):
            self.inner.cache_finished_req(req, num_pages)
        elif not slot.closed and all(part.can_continue(req, num_pages) for part in self._parts):
            num_new = slot.save_from_req(req, num_pages, self._allocator.ledger)
            self.session_held_pages += num_new
            for part in self._parts if num_new else ():
                part.extended(req, slot, num_new)

    def release(self, req: CachedRequest) -> None:
        """Release ``req`` in the inner cache.

        If it is a turn that uses a slot, unpin the slot, which becomes the most recently used one.
        """
        self.inner.release(req)
        slot = self._turns.get(req.rid)
        if slot is not None and slot.pinned_by == req.rid:
            slot.unpin()
            self._unpin(slot)
            self._empty_useless(slot)

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
                freed += self._empty_useless(slot)
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
            self._empty_useless(slot)

    def held_pages(self, session: str) -> dict[str, int]:
        """Return the number of pages of the session's slot in each pool, by name of the pool."""
        slot = self._slots.get(session, SessionSlot(session))
        return {FULL_POOL: len(slot.pages), **{part.name: part.tail_pages(slot) for part in self._parts}}

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
        for part in self._parts:
            found = sum(part.tail_pages(slot) for slot in slots)
            if found != part.session_held_pages:
                errors.append(f"pool {part.name} counts {part.session_held_pages} pages of slots; slots have {found}")
        return errors

    def drop_pages(self, pages: Collection[int]) -> set[int]:
        """See ``AuditedCache``. Empties every slot that owns one of ``pages``; the sessions keep their tokens."""
        for slot in self.slots():
            if any(page in pages for page in slot.pages):
                self._forget(slot)
        return self.inner.drop_pages(pages)

    def rebuild_locks(self, running: Sequence[CachedRequest]) -> None:
        """See ``AuditedCache``."""
        self.inner.rebuild_locks(running)
        runs = {req.rid for req in running}
        self.session_held_pages = self.evictable_session_pages = 0
        self._unpinned.clear()
        for slot in self.slots():
            if slot.pinned_by not in runs:
                slot.unpin()
            if not slot.pinned_by and self._is_useless(slot):
                self._forget(slot)
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

    def _empty_useless(self, slot: SessionSlot) -> int:
        """Free all pages of an unpinned slot if no turn can use it any more. Return the number of pages freed."""
        return self._trim(slot, 0) if self._is_useless(slot) else 0

    def _is_useless(self, slot: SessionSlot) -> bool:
        return slot.closed or not all(part.is_usable(slot) for part in self._parts)

    def _evicted(self, element: PathElement) -> None:
        """Free a slot of which another pool has evicted pages, if no turn can use the rest."""
        assert isinstance(element, SessionSlot)
        if not element.pinned_by:
            self._empty_useless(element)

    def _forget(self, slot: SessionSlot) -> None:
        """Remove all pages from a slot without freeing them. The caller rebuilds the accounting."""
        slot.pages = []
        for part in self._parts:
            part.forgotten(slot)

    def _trim(self, slot: SessionSlot, keep: int) -> int:
        """Free all but the first ``keep`` pages of an unpinned slot. Return the number of pages freed."""
        freed = slot.pages[keep:]
        if not freed:
            return 0
        self._allocator.give(freed, slot)
        for part in self._parts:
            part.trimmed(slot, len(freed))
        del slot.pages[keep:]
        self.session_held_pages -= len(freed)
        self.evictable_session_pages -= len(freed)
        if not slot.pages:
            self._unpinned.pop(id(slot), None)
        return len(freed)
