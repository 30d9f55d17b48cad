"""Streaming sessions over any prefix cache: a decorator, so that the scheduling loop knows nothing of sessions.

Between turns a session keeps the K/V of its committed tokens in a slot. A slot is pinned only while its turn runs;
otherwise it is soft: it stands in one least-recently-used order with the inner cache's pages and gives its last pages
first. Whatever is lost is computed again from the tokens, which live elsewhere.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from .allocator import PageAllocator
from .ledger import Ledger, PageOwner
from .prefix_cache import BasePrefixCache, MatchResult

if TYPE_CHECKING:
    from ..request import Request


@dataclass(slots=True, eq=False)
class SessionSlot:
    """K/V of a session's committed tokens: whole pages, from page index ``first`` on.

    The pages before ``first`` are in the inner cache, where others share them; they are used last when the slot is, so
    they are never evicted before it. session: its name among all that ever were. lent_to: the turn that runs on it, ""
    while it is soft. closed: the session is gone, and the slot goes with the turn that still runs on it.
    """

    session: str
    first: int = 0
    pages: list[int] = field(default_factory=list)
    lent_to: str = ""
    tick: int = 0
    closed: bool = False
    is_tree_node: ClassVar[bool] = False

    @property
    def tag(self) -> str:
        """Its name in messages."""
        return f"the slot of session {self.session}"

    @property
    def is_locked(self) -> bool:
        """True while a turn runs on it."""
        return bool(self.lent_to)

    @property
    def end(self) -> int:
        """Page index after its last page."""
        return self.first + len(self.pages)

    def restore_to_req(self, req: Request) -> None:
        """Lend the pages to ``req``, which has been given those before ``first``. The slot is not emptied.

        A turn that is turned away or retracted gives nothing back that it did not bring: it is lent the same again.
        """
        self.lent_to = req.rid
        req.pages += self.pages
        req.num_shared = len(req.pages)

    def save_from_req(self, req: Request, num_pages: int, ledger: Ledger) -> int:
        """Keep the pages up to index ``num_pages`` that are the request's own; returns how many they are."""
        if self.lent_to != req.rid:  # it was computed without the slot, so all before is in the inner cache
            self.first, self.lent_to = req.num_shared, req.rid
        new = req.pages[req.num_shared : num_pages]
        ledger.move(tuple(new), req, self)
        self.pages += new
        req.num_shared += len(new)
        return len(new)


@dataclass(slots=True)
class SessionMatch(MatchResult):
    """A match that ends in a slot: ``inner`` is the part before it."""

    slot: SessionSlot | None = None
    inner: MatchResult = field(default_factory=MatchResult)


class SessionAwareCache:
    """Hands on what is no session's business. See ``BasePrefixCache`` for the contract of its methods."""

    def __init__(self, inner: BasePrefixCache, allocator: PageAllocator) -> None:
        self.inner = inner
        self.session_held_pages = 0
        self.soft_pages = 0
        self._allocator = allocator
        self._slots: OrderedDict[str, SessionSlot] = OrderedDict()
        self._turns: dict[str, SessionSlot] = {}  # by the turn's rid, from its acceptance to its end
        self._soft: OrderedDict[int, SessionSlot] = OrderedDict()  # slots with pages and no turn on them, oldest first

    @property
    def evictable_pages(self) -> int:
        """Of the inner cache."""
        return self.inner.evictable_pages

    @property
    def protected_pages(self) -> int:
        """Of the inner cache."""
        return self.inner.protected_pages

    @property
    def tick(self) -> int:
        """Of the inner cache: one order of use for both."""
        return self.inner.tick

    def match_prefix(self, req: Request, limit: int | None = None) -> MatchResult:
        """The slot if the turn's session is warm; what the inner cache has if that is more, or all there is."""
        slot = self._turns.get(req.rid)
        whole = self.inner.match_prefix(req, limit)
        if (
            slot is None
            or limit is not None
            or req.needs_prompt_logprobs
            or not slot.first <= len(whole.pages) < slot.end
        ):
            return whole
        before = self.inner.match_prefix(req, slot.first)
        pages = before.pages + slot.pages
        return SessionMatch(pages, before.num_locked, before.node, before.num_in_node, slot, before)

    def attach(self, req: Request, match: MatchResult) -> None:
        """Restore the slot, which nobody can evict while the turn runs; one that is no part of the match is dropped."""
        if isinstance(match, SessionMatch) and match.slot is not None:
            self.inner.attach(req, match.inner)
            self._harden(match.slot)
            match.slot.restore_to_req(req)
            return
        slot = self._turns.get(req.rid)
        if slot is not None:
            self._empty(slot)
        self.inner.attach(req, match)

    def publish(self, req: Request, num_pages: int) -> None:
        """A turn on a slot publishes nothing: what it computes is its session's alone, and only once it has ended."""
        slot = self._turns.get(req.rid)
        if slot is None or slot.lent_to != req.rid:
            self.inner.publish(req, num_pages)

    def cache_finished_req(self, req: Request, num_pages: int) -> None:
        """Save the turn to its slot."""
        slot = self._turns.get(req.rid)
        if slot is None or (slot.closed and slot.lent_to != req.rid):
            self.inner.cache_finished_req(req, num_pages)
        elif not slot.closed:
            self.session_held_pages += slot.save_from_req(req, num_pages, self._allocator.ledger)

    def release(self, req: Request) -> None:
        """The slot is soft again, and the most recently used of all."""
        self.inner.release(req)
        slot = self._turns.get(req.rid)
        if slot is not None and slot.lent_to == req.rid:
            slot.lent_to = ""
            self._soften(slot)
            if slot.closed:
                self._empty(slot)

    def evict(self, num_pages: int, before: int | None = None) -> int:
        """The inner cache's pages and the slots' in one order of use, a slot's last pages first."""
        freed = 0
        while freed < num_pages and self._soft:
            slot = next(iter(self._soft.values()))
            if before is not None and slot.tick >= before:
                break
            freed += self.inner.evict(num_pages - freed, slot.tick)
            if freed < num_pages:
                freed += self._trim(slot, max(len(slot.pages) - (num_pages - freed), 0))
        return freed + self.inner.evict(num_pages - freed, before)

    def clear(self) -> None:
        """The K/V of all sessions too; their tokens live elsewhere."""
        for slot in list(self._soft.values()):
            self._empty(slot)
        self.inner.clear()

    def lock_only(self, req: Request) -> int:
        """With the slot's pages: they are soft when the turn leaves."""
        slot = self._turns.get(req.rid)
        lent = len(slot.pages) if slot is not None and slot.lent_to == req.rid else 0
        return self.inner.lock_only(req) + lent

    def begin_turn(self, session: str, rid: str) -> None:
        """Request ``rid`` is the session's turn from now on."""
        slot = self._slots.get(session)
        if slot is None:
            slot = self._slots[session] = SessionSlot(session)
        self._turns[rid] = slot

    def end_turn(self, rid: str) -> None:
        """The turn has ended; it has been released if it ran."""
        self._turns.pop(rid, None)

    def close(self, session: str) -> None:
        """Give the session's K/V back: now, or when the turn that stands on it has ended."""
        slot = self._slots.pop(session, None)
        if slot is not None:
            slot.closed = True
            if not slot.lent_to:
                self._empty(slot)

    def shorten(self, session: str, num_tokens: int) -> None:
        """The session has fewer tokens than was thought: keep no page that reaches beyond them."""
        slot = self._slots.get(session)
        if slot is not None:
            self._trim(slot, max(num_tokens // self._allocator.page_size - slot.first, 0))

    def held_pages(self, session: str) -> int:
        """Pages in the session's slot."""
        slot = self._slots.get(session)
        return 0 if slot is None else len(slot.pages)

    @property
    def num_turns(self) -> int:
        """Turns that have not ended."""
        return len(self._turns)

    def slots(self) -> list[SessionSlot]:
        """Every slot, those too whose session is closed while its last turn runs."""
        return list({id(slot): slot for slot in [*self._slots.values(), *self._turns.values()]}.values())

    def owners(self) -> Iterator[tuple[PageOwner, Sequence[int]]]:
        """See ``CacheBooks``: the inner cache's, and the slots."""
        yield from self.inner.owners()
        for slot in self.slots():
            yield slot, slot.pages

    def next_owners(self, share: float) -> list[tuple[PageOwner, Sequence[int]]]:
        """See ``CacheBooks``."""
        seen = list(self.inner.next_owners(share))
        for _ in range(math.ceil(len(self._slots) * share)):
            name, slot = self._slots.popitem(last=False)
            self._slots[name] = slot
            seen.append((slot, slot.pages))
        return seen

    def faults(self, running: Sequence[Request]) -> list[str]:
        """See ``CacheBooks``."""
        words = self.inner.faults(running)
        slots = self.slots()
        held = sum(len(slot.pages) for slot in slots)
        soft = sum(len(slot.pages) for slot in slots if not slot.lent_to)
        if (held, soft) != (self.session_held_pages, self.soft_pages):
            counted = f"the slots count {self.session_held_pages} pages, {self.soft_pages} of them soft"
            words.append(f"{counted}; a recount finds {held} and {soft}")
        runs = {req.rid for req in running}
        words += [
            f"{slot.tag} is lent to {slot.lent_to}, which does not run"
            for slot in slots
            if slot.lent_to not in {*runs, ""}
        ]
        in_order = {id(slot) for slot in slots if slot.pages and not slot.lent_to}
        if in_order != set(self._soft):
            words.append("the order of eviction does not list the soft slots")
        return words

    def cut(self, doubt: Collection[int]) -> set[int]:
        """See ``CacheBooks``: a slot with a page in ``doubt`` is forgotten; its session's tokens are not."""
        for slot in self.slots():
            if any(page in doubt for page in slot.pages):
                slot.pages = []
        return self.inner.cut(doubt)

    def relock(self, running: Sequence[Request]) -> None:
        """See ``CacheBooks``."""
        self.inner.relock(running)
        runs = {req.rid for req in running}
        self.session_held_pages = self.soft_pages = 0
        self._soft.clear()
        for slot in self.slots():
            slot.lent_to = slot.lent_to if slot.lent_to in runs else ""
            if slot.closed and not slot.lent_to:
                slot.pages = []
            self.session_held_pages += len(slot.pages)
            if not slot.lent_to:
                self._soften(slot)

    def _soften(self, slot: SessionSlot) -> None:
        slot.tick = self.inner.tick
        if slot.pages:
            self._soft[id(slot)] = slot
            self.soft_pages += len(slot.pages)

    def _harden(self, slot: SessionSlot) -> None:
        if self._soft.pop(id(slot), None) is not None:
            self.soft_pages -= len(slot.pages)

    def _empty(self, slot: SessionSlot) -> None:
        self._trim(slot, 0)

    def _trim(self, slot: SessionSlot, keep: int) -> int:
        """Free the pages of a soft slot after the first ``keep``; returns how many."""
        gone = slot.pages[keep:]
        if not gone:
            return 0
        self._allocator.give(gone, slot)
        del slot.pages[keep:]
        self.session_held_pages -= len(gone)
        self.soft_pages -= len(gone)
        if not slot.pages:
            self._soft.pop(id(slot), None)
        return len(gone)
