"""The events describe exactly which blocks the tree holds, at any time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from ebbtide.errors import InvariantViolation
from ebbtide.messages import SWA_POOL, GenerateReq, OpenSessionReq, PoolInfo, SessionTurn
from ebbtide.scheduler.kv_events.block_events import (
    AllBlocksCleared,
    BlockRecorder,
    BlockRemoved,
    BlockStored,
    EventBatch,
    GroupBlockRemoved,
    GroupBlockStored,
    block_hash,
    namespace_hash,
)
from ebbtide.scheduler.memory.node import Node
from ebbtide.scheduler.memory.radix_cache import RadixCache
from ebbtide.scheduler.memory.session_aware_cache import SessionAwareCache
from ebbtide.scheduler.memory.sliding_window.window_pool import WindowPool
from ebbtide.scheduler.memory.sliding_window.window_span import WindowSpan

from ..loads import Arrival, ample, demand, play, random_load, resent_conversations, trimmed_prefixes
from ..make import request
from ..world import Shape, World, greedy, text
from . import sglang_events, vllm_events


class Router:
    """The index of a subscriber: block hash → parent hash and tokens. Fails on inconsistent events.

    windows: the blocks of the group of a sliding window, by hash.
    """

    def __init__(self) -> None:
        self.blocks: dict[int, tuple[int | None, tuple[int, ...]]] = {}
        self.windows: dict[int, tuple[int | None, tuple[int, ...]]] = {}
        self.num_removed = self.num_windows_removed = 0

    def hear(self, events: list[BlockStored | BlockRemoved | AllBlocksCleared]) -> None:
        for event in events:
            match event:
                case AllBlocksCleared():
                    self.blocks.clear()
                    self.windows.clear()
                case GroupBlockStored(group_idx=1) | GroupBlockRemoved(group_idx=1):
                    self.hear_window(event)
                case BlockRemoved(block_hashes=hashes):
                    self.num_removed += len(hashes)
                    for block in hashes:
                        del self.blocks[block]
                case BlockStored(block_hashes=hashes, parent_block_hash=parent, token_ids=tokens, block_size=size):
                    assert len(tokens) == len(hashes) * size
                    assert parent is None or parent in self.blocks
                    for index, block in enumerate(hashes):
                        assert block not in self.blocks
                        self.blocks[block] = parent, tuple(tokens[index * size : (index + 1) * size])
                        parent = block

    def hear_window(self, event: GroupBlockStored | GroupBlockRemoved) -> None:
        """A block of the window is a block of the other group, too."""
        if isinstance(event, GroupBlockRemoved):
            self.num_windows_removed += len(event.block_hashes)
            for block in event.block_hashes:
                del self.windows[block]
            return
        parent, size = event.parent_block_hash, event.block_size
        for index, block in enumerate(event.block_hashes):
            assert block not in self.windows
            self.windows[block] = parent, tuple(event.token_ids[index * size : (index + 1) * size])
            assert self.windows[block] == self.blocks[block]
            parent = block


def windows_of(world: World) -> set[int]:
    """The hashes of the tree's blocks of which the window pool has pages."""
    pool, size = world.scheduler.state.kv_pools[1], world.shape.page_size
    assert isinstance(pool, WindowPool)
    hashes = set()
    for span, pages in pool.spans.store.owners():
        assert isinstance(span, WindowSpan)
        if isinstance(span.node, Node):
            whole = tokens_before(span.node) + span.node.tokens
            block, blocks = namespace_hash(span.node.namespace), []
            for start in range(0, len(whole), size):
                block = block_hash(block, whole[start : start + size])
                blocks.append(block)
            hashes |= set(blocks[len(blocks) - len(pages) :])
    return hashes


def tokens_before(node: Node) -> list[int]:
    tokens: list[int] = []
    walk = node.parent
    while walk is not None:
        tokens = walk.tokens + tokens
        walk = walk.parent
    return tokens


def blocks_of(world: World) -> dict[int, tuple[int | None, tuple[int, ...]]]:
    """The same index built from the tree, without a recorder."""
    blocks: dict[Any, Any] = {}
    last: dict[Any, Any] = {}
    tree, size = world.pool.tree_cache, world.shape.page_size
    tree = tree.inner if isinstance(tree, SessionAwareCache) else tree
    assert isinstance(tree, RadixCache)
    for node in tree.walk():
        assert node.parent is not None
        parent = last.get(id(node.parent))
        for start in range(0, len(node.tokens), size):
            tokens = tuple(node.tokens[start : start + size])
            block = block_hash(namespace_hash(node.namespace) if parent is None else parent, tokens)
            blocks[block] = parent, tokens
            parent = block
        last[id(node)] = parent
    return blocks


class Watched(World):
    """A world whose events go to a router after every step."""

    def __init__(self, shape: Shape) -> None:
        self.recorder = BlockRecorder(shape.page_size)
        super().__init__(shape, self.recorder)
        self.router = Router()

    def step(self) -> None:
        super().step()
        self.compare()

    def compare(self) -> None:
        self.router.hear(self.recorder.drain())
        assert self.router.blocks == blocks_of(self)
        if self.shape.second is not None:
            assert self.router.windows.keys() == windows_of(self)


LOADS = {f"random {seed}": random_load(seed, aborts=seed % 2 == 1) for seed in range(4)} | {
    "resent": resent_conversations(),
    "trimmed": trimmed_prefixes(),
}


@pytest.mark.slow
@pytest.mark.parametrize("load", LOADS.values(), ids=LOADS.keys())
@pytest.mark.parametrize("page_size", [1, 4])
def test_the_events_reproduce_the_tree_after_every_step(load: list[Arrival], page_size: int) -> None:
    pages = demand(play(load, ample(page_size))) + 4
    world = play(load, Shape(num_pages=pages, page_size=page_size, num_rows=4, conservativeness=0.02), Watched)
    assert isinstance(world, Watched)
    world.compare()
    assert world.router.num_removed
    assert world.router.blocks


@pytest.mark.slow
@pytest.mark.parametrize(("load", "window"), list(zip(LOADS.values(), [3, 18] * 3, strict=True)), ids=LOADS.keys())
def test_the_events_of_each_group_reproduce_its_blocks_after_every_step(load: list[Arrival], window: int) -> None:
    pages = demand(play(load, replace(ample(4), second=PoolInfo(5000, 4, SWA_POOL, window)))) + 4
    second = PoolInfo(24, 4, SWA_POOL, window)
    shape = Shape(num_pages=pages, num_rows=4, chunk=16, conservativeness=0.02, second=second, host_pages=30)
    world = play(load, shape, Watched)
    assert isinstance(world, Watched)
    world.compare()
    assert world.router.num_windows_removed
    world.pool.tree_cache.clear()
    world.compare()
    assert not world.router.windows


def test_an_evicted_window_is_removed_from_its_group_only() -> None:
    world = Watched(Shape(second=PoolInfo(64, 4, SWA_POOL, 18)))
    world.generate("a", text("some prompt of several pages"), greedy(1))
    world.run()
    pool = world.scheduler.state.kv_pools[1]
    assert isinstance(pool, WindowPool)
    pool.spans.evict(2)
    (event,) = world.recorder.drain()
    assert isinstance(event, GroupBlockRemoved)
    assert (event.group_idx, len(event.block_hashes)) == (1, 2)
    world.router.hear([event])
    assert len(world.router.blocks) - len(world.router.windows) == 2
    assert {parent for parent, _ in world.router.windows.values()} <= world.router.blocks.keys()


def test_pages_of_a_session_are_in_no_event() -> None:
    world = Watched(Shape(second=PoolInfo(64, 4, SWA_POOL, 18), sessions=True))
    world.send(OpenSessionReq("open", "s", streaming=True))
    for rid in ("a", "b"):
        world.send(GenerateReq((rid,), text("some words"), greedy(30, ignore_eos=True), session=SessionTurn("s")))
        world.run()
    assert world.scheduler.state.kv_pools[1].accounting().session_held
    assert len(world.router.blocks) == len(world.router.windows) == len("some words") // 4


@pytest.mark.parametrize("faulty", [0, 1], ids=["full", "swa"])
def test_a_recovery_publishes_both_groups_again(faulty: int) -> None:
    world = Watched(Shape(memory_check="quarantine", second=PoolInfo(64, 4, SWA_POOL, 18)))
    for rid in ("one", "two"):
        world.generate(rid, text(f"{rid} " * 5), greedy(2))
    world.run()
    pool = world.scheduler.state.kv_pools[faulty]
    (_, pages), *_ = pool.owners([])
    pool.ledger.assign(pages[:1], request("somebody"))
    world.scheduler.on_idle()
    events = world.recorder.drain()
    assert events[0] == AllBlocksCleared()
    world.router.hear(events)
    assert world.router.blocks == blocks_of(world)
    assert world.router.windows.keys() == windows_of(world)
    assert world.router.windows


def test_equal_tokens_in_two_namespaces_are_two_blocks() -> None:
    world = Watched(Shape())
    for rid, namespace in (("a", ""), ("b", "salt:x")):
        world.generate(rid, text("the same words"), greedy(2), namespace=namespace)
    world.run()
    firsts = [tokens for parent, tokens in world.router.blocks.values() if parent is None]
    assert firsts == [tuple(text("the "))] * 2


def test_a_recovery_publishes_the_whole_tree_again() -> None:
    world = Watched(Shape(num_pages=40, memory_check="quarantine"))
    for rid in ("one", "two"):
        world.generate(rid, text(f"{rid} " * 5), greedy(2))
    world.run()
    tree = world.pool.tree_cache
    assert isinstance(tree, RadixCache)
    before = len(world.router.blocks)
    world.allocator.ledger.assign(next(tree.walk()).pages[:1], request("somebody"))
    world.scheduler.on_idle()
    events = world.recorder.drain()
    assert events[0] == AllBlocksCleared()
    world.router.hear(events)
    assert world.router.blocks == blocks_of(world)
    assert 0 < len(world.router.blocks) < before


def test_a_block_that_was_never_stored_is_a_violation_without_event() -> None:
    recorder = BlockRecorder(page_size=4)
    recorder.drain()
    with pytest.raises(InvariantViolation, match="page 3"):
        recorder.removed([3])
    root = Node([], [], None, "")
    with pytest.raises(InvariantViolation, match="page 5"):
        recorder.stored(Node([1] * 4, [6], Node([2] * 4, [5], root, ""), ""))
    assert recorder.drain() == []


BATCH = EventBatch(1.5, [AllBlocksCleared(), BlockStored([7, 8], None, [1, 2, 3, 4], 2), BlockRemoved([8])])


def test_an_event_is_encoded_as_a_map_with_its_name_as_type() -> None:
    stored = {
        "type": "BlockStored",
        "block_hashes": [7, 8],
        "parent_block_hash": None,
        "token_ids": [1, 2, 3, 4],
        "block_size": 2,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
    }
    removed = {"type": "BlockRemoved", "block_hashes": [8], "medium": "GPU"}
    plain = msgspec.msgpack.decode(msgspec.msgpack.encode(BATCH))
    assert plain == [1.5, [{"type": "AllBlocksCleared"}, stored, removed]]


def test_an_event_of_a_group_has_the_fields_of_vllm_in_addition() -> None:
    stored = GroupBlockStored([7], 5, [1, 2], 2, group_idx=1, kv_cache_spec_kind="sliding_window")
    batch = EventBatch(1.5, [stored, GroupBlockRemoved([7], group_idx=1)])
    (seen, removed) = msgspec.msgpack.decode(msgspec.msgpack.encode(batch), type=vllm_events.KVEventBatch).events
    assert isinstance(seen, vllm_events.BlockStored)
    assert isinstance(removed, vllm_events.BlockRemoved)
    assert (seen.block_hashes, seen.group_idx, seen.kv_cache_spec_kind) == ([7], 1, "sliding_window")
    assert (removed.block_hashes, removed.group_idx) == ([7], 1)


GROUPED = EventBatch(1.5, [AllBlocksCleared(), GroupBlockStored([7, 8], None, [1, 2, 3, 4], 2), GroupBlockRemoved([8])])


@pytest.mark.parametrize("sent", [BATCH, GROUPED], ids=["one pool", "groups"])
@pytest.mark.parametrize("kind", [vllm_events.KVEventBatch, sglang_events.KVEventBatch])
def test_the_decoders_of_routers_accept_the_events(kind: Any, sent: EventBatch) -> None:
    batch = msgspec.msgpack.decode(msgspec.msgpack.encode(sent), type=kind)
    cleared, stored, removed = batch.events
    assert (batch.ts, type(cleared).__name__) == (1.5, "AllBlocksCleared")
    assert (stored.block_hashes, stored.parent_block_hash) == ([7, 8], None)
    assert (stored.token_ids, stored.block_size, stored.medium) == ([1, 2, 3, 4], 2, "GPU")
    assert (removed.block_hashes, removed.medium) == ([8], "GPU")


def test_hashes_are_equal_in_every_process_and_fit_signed_64_bits() -> None:
    assert block_hash(namespace_hash(""), [1, 2, 3, 4]) == 6277214383906358219
    assert all(0 <= block_hash(number, [number]) < 2**63 for number in range(1000))
