"""The pool of the layers with a recurrent state, such as Mamba layers and short convolutions.

A page of this pool is a slot: the state of all these layers after some token of one request. A running request has a
working slot, which its steps advance in place. The prefix tree keeps copies: the checkpoints.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

from ebbtide.messages import PoolInfo
from ebbtide.paging import pages_for

from ..accounting import OwnershipError, PoolAccounting, Sweep, compare_with_ledger, mismatches, rebuild
from ..allocator import PageAllocator
from ..cached_request import CachedRequest
from ..ledger import PageOwner
from ..node import Node, PathElement
from ..tree_part import MatchPath
from .checkpoints import Checkpoints
from .state_slots import SavedState, StateSlots


class StatePool:
    """A ``FurtherPool`` and a ``TreePart``. Its page size is the context length, so that a slot has one page index.

    A copy that is not in the tree yet belongs to its request, and can be dropped once its step is settled.
    """

    def __init__(
        self,
        info: PoolInfo,
        tree_page_size: int,
        save_every: int,
        *,
        on_free: Callable[[Sequence[int]], None] | None = None,
    ) -> None:
        """
        tree_page_size: number of tokens per page of the prefix tree.
        save_every: number of output tokens between two copies, at least 1; 0 if nothing is cached.
        """
        self.name = info.name
        self.page_size = info.page_size
        self.allocator = PageAllocator(info.num_pages, info.page_size, on_free=on_free)
        self.ledger = self.allocator.ledger
        self.quarantined: set[int] = set()
        self.uncached = 0  # number of slots of running requests, updated with every change
        self.held: dict[str, StateSlots] = {}
        self.checkpoints = Checkpoints(self.allocator)
        self._tree_page_size = tree_page_size
        self._save_every = pages_for(save_every, tree_page_size) * tree_page_size
        self._droppable: OrderedDict[tuple[str, int], CachedRequest] = OrderedDict()  # by request id and slot
        self._sweep = Sweep(self.allocator)

    @property
    def capacity(self) -> int:
        """See ``KvPool``."""
        return self.allocator.num_pages - len(self.quarantined)

    @property
    def available_pages(self) -> int:
        """See ``KvPool``."""
        return self.allocator.available_pages

    @property
    def usable_pages(self) -> int:
        """See ``KvPool``."""
        return self.allocator.available_pages + len(self.checkpoints) + len(self._droppable)

    @property
    def max_pages(self) -> int:
        """See ``KvPool``."""
        return 1

    def pages_for(self, num_tokens: int) -> int:
        """See ``KvPool``."""
        return 1

    def num_pages(self, req: CachedRequest) -> int:
        """See ``KvPool``."""
        return len(self._of(req).pages)

    def missing_pages(self, req: CachedRequest, num_tokens: int) -> int:
        """See ``KvPool``."""
        return 1 - len(self._of(req).pages)

    def pages_to_restore(self, req: CachedRequest, num_tokens: int) -> int:
        """See ``KvPool``."""
        return self.missing_pages(req, num_tokens)

    def freed_by(self, req: CachedRequest) -> int:
        """See ``KvPool``. Copies that can be dropped are usable already, so they do not count."""
        return len(self._of(req).slots) - sum((req.rid, slot) in self._droppable for slot in self._of(req).slots)

    def demand(self, running: Sequence[CachedRequest]) -> int:
        """See ``KvPool``. Every running request has its slot."""
        return 0

    def evict_from_tree_cache(self, num_pages: int) -> bool:
        """See ``KvPool``. Frees checkpoints first, then copies of running requests, the oldest ones first."""
        self.checkpoints.evict(num_pages - self.allocator.available_pages)
        while self.allocator.available_pages < num_pages and self._droppable:
            (rid, slot), req = self._droppable.popitem(last=False)
            self.held[rid].saved = [state for state in self.held[rid].saved if state.slot != slot]
            self._free(req, [slot])
        return self.allocator.available_pages >= num_pages

    def allocate_up_to(self, req: CachedRequest, num_tokens: int) -> int:
        """See ``KvPool``."""
        held = self.held.setdefault(req.rid, StateSlots())
        if not held.pages and self.evict_from_tree_cache(1):
            held.pages = self._take(req)
        return self.page_size if held.pages else 0

    def chunk_end(self, req: CachedRequest, end: int) -> int:
        """Return the token, at most ``end``, before which the next chunk of ``req`` should end.

        A chunk ends at a page boundary, so that its end can be cached. The last tokens of a prompt are a chunk of their
        own, because an equal prompt computes at least one token.
        """
        if not self._save_every:
            return end
        last = end - 1 if end == len(req.known) else end
        boundary = last // self._tree_page_size * self._tree_page_size
        return boundary if boundary > req.computed else end

    def source(self, req: CachedRequest) -> int:
        """Return the slot from which the first step of ``req`` takes the state; -1 for the state before any token."""
        return self.held[req.rid].source

    def save(self, req: CachedRequest, end: int) -> int | None:
        """Take a slot for a copy of the state before token ``end``, which the next step of ``req`` computes.

        Returns None if the copy is not wanted, or if no slot is free or evictable. Wanted are the ends of chunks, and
        output tokens at regular distances.
        """
        if not self._save_every or end % self._tree_page_size or (req.is_decoding and end % self._save_every):
            return None
        if not (self.allocator.available_pages or len(self.checkpoints)):
            return None
        self.evict_from_tree_cache(1)
        slot = self._take(req)[0]
        self.held[req.rid].saved.append(SavedState(end, slot))
        return slot

    def settled(self, req: CachedRequest) -> None:
        """See ``FurtherPool``. Marks the copies that can be dropped from now on."""
        for state in self.held[req.rid].ends(req.num_confirmed):
            if not state.is_settled:
                state.is_settled = True
                self._droppable[req.rid, state.slot] = req

    def release_kv_cache(self, req: CachedRequest, *, is_insert: bool) -> None:
        """See ``KvPool``. The working slot becomes a checkpoint if its state is the one after the published tokens."""
        held = self.held.pop(req.rid, None)
        if held is None:
            return
        self._drop_saved(req, held, held.saved)
        is_exact = req.computed == req.num_confirmed == held.num_cached * self._tree_page_size
        is_kept = is_insert and is_exact and held.node is not None and bool(held.pages)
        if is_kept and held.node is not None and self.checkpoints.add(held.node, held.pages[0], req):
            self.uncached -= 1
        else:
            self._free(req, held.pages)

    def take_unsent(self, req: CachedRequest) -> tuple[int, list[int]]:
        """See ``FurtherPool``."""
        held = self.held[req.rid]
        unsent, held.sent = held.pages[held.sent :], len(held.pages)
        return 0, unsent

    def usable_match(self, path: MatchPath) -> int:
        """See ``TreePart``."""
        return self.checkpoints.usable_match(path)

    def num_locked(self, path: MatchPath) -> int:
        """See ``TreePart``. Requests share no slots."""
        return 0

    def attached(self, req: CachedRequest, end: PathElement) -> None:
        """See ``TreePart``. The checkpoint is not locked: a step reads all sources before it writes to a slot."""
        source = self.checkpoints.slot_of(end) if req.pages else -1
        self.held[req.rid] = StateSlots(source=source, node=end, num_cached=len(req.pages))

    def node_ends(self, req: CachedRequest, num_pages: int) -> list[int]:
        """See ``TreePart``: the copies that are published end a node."""
        ends = self.held[req.rid].ends(num_pages * self._tree_page_size)
        return [state.num_tokens // self._tree_page_size for state in ends]

    def published(self, req: CachedRequest, node: Node, start: int) -> None:
        """See ``TreePart``. The copy of the state after the last token of ``node`` becomes its checkpoint."""
        held = self.held[req.rid]
        held.node, held.num_cached = node, start + len(node.pages)
        num_tokens = held.num_cached * self._tree_page_size
        for state in held.ends(num_tokens):
            if state.num_tokens == num_tokens and self.checkpoints.add(node, state.slot, req):
                held.saved.remove(state)
                self._droppable.pop((req.rid, state.slot), None)
                self.uncached -= 1
        self._drop_saved(req, held, held.ends(num_tokens))

    def split(self, upper: Node, lower: Node) -> None:
        """See ``TreePart``. The lower node still ends at the same token."""

    def trimmed(self, leaf: PathElement, num_pages: int) -> None:
        """See ``TreePart``. The leaf now ends at another token."""
        self.checkpoints.remove(leaf)

    def released(self, req: CachedRequest, access_clock: int) -> None:
        """See ``TreePart``."""
        self.checkpoints.access_clock = access_clock
        held = self.held.get(req.rid)
        if held is not None and held.node is not None:
            self.checkpoints.used(held.node)

    def kept(self, nodes: Collection[Node]) -> None:
        """See ``TreePart``."""
        self.checkpoints.keep(nodes)

    def accounting(self) -> PoolAccounting:
        """See ``AuditedPool``."""
        return PoolAccounting(
            available=self.allocator.available_pages,
            evictable=len(self.checkpoints),
            protected=0,
            session_held=0,
            uncached=self.uncached,
            total=self.capacity,
            quarantined=len(self.quarantined),
        )

    def owners(self, running: Iterable[CachedRequest]) -> Iterator[tuple[PageOwner, Sequence[int]]]:
        """See ``AuditedPool``."""
        yield from self.checkpoints.owners()
        for req in running:
            yield req, self._of(req).slots

    def recount(self, running: Sequence[CachedRequest]) -> int:
        """See ``AuditedPool``."""
        usual = len(self.held) == len(running)  # otherwise ``validate`` finds the difference
        held = self.held.values() if usual else map(self._of, running)
        return sum([len(one.pages) + len(one.saved) for one in held])

    def find_ownership_errors(self, running: Iterable[CachedRequest]) -> list[OwnershipError]:
        """See ``AuditedPool``."""
        return compare_with_ledger(self.allocator, self.owners(running), self.quarantined)

    def sweep(self, running: Sequence[CachedRequest]) -> list[OwnershipError]:
        """See ``AuditedPool``."""
        errors = self._sweep.check_free_list()
        for req in self._sweep.next_share(running):
            errors += mismatches(self.ledger, self._of(req).slots, req)
        for owner, slots in self.checkpoints.next_owners(self._sweep.share):
            errors += mismatches(self.ledger, slots, owner)
        return errors

    def validate(self, running: Sequence[CachedRequest]) -> list[str]:
        """See ``FurtherPool``."""
        stray = sorted(self.held.keys() - {req.rid for req in running})
        errors = [f"slots are held for requests that are not running: {', '.join(stray)}"] if stray else []
        settled = {(rid, state.slot) for rid, held in self.held.items() for state in held.saved if state.is_settled}
        if settled != self._droppable.keys():
            errors.append(f"the copies {sorted(settled)} can be dropped, but {sorted(self._droppable)} are listed")
        return errors + self.checkpoints.validate()

    def drop_owners(self, owners: Collection[int]) -> None:
        """See ``FurtherPool``."""
        self.checkpoints.drop(owners)

    def is_intact(self, req: CachedRequest) -> bool:
        """See ``FurtherPool``."""
        return self.quarantined.isdisjoint(self._of(req).slots)

    def repair(self, running: Sequence[CachedRequest]) -> None:
        """See ``AuditedPool``."""
        self.held = {req.rid: self.held[req.rid] for req in running if req.rid in self.held}
        rebuild(self.allocator, self.owners(running), self.quarantined)
        self.uncached = self.recount(running)
        self._droppable = OrderedDict(
            ((req.rid, state.slot), req) for req in running for state in self._of(req).saved if state.is_settled
        )
        self.checkpoints.reorder()

    def _take(self, req: CachedRequest) -> list[int]:
        self.uncached += 1
        return list(self.allocator.take(1, req))

    def _free(self, req: CachedRequest, slots: list[int]) -> None:
        self.allocator.give(slots, req)
        self.uncached -= len(slots)

    def _drop_saved(self, req: CachedRequest, held: StateSlots, states: Iterable[SavedState]) -> None:
        """Free copies that are not needed."""
        for state in list(states):
            held.saved.remove(state)
            self._droppable.pop((req.rid, state.slot), None)
            self._free(req, [state.slot])

    def _of(self, req: CachedRequest) -> StateSlots:
        return self.held.get(req.rid) or StateSlots()
