"""The order of ``--schedule-policy fair``: accounts take turns, by tokens, and do not exceed their share."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, Literal

import pytest

from ebbtide.scheduler.batching.fair_account import QUANTUM
from ebbtide.scheduler.batching.fair_order import FairOrder
from ebbtide.scheduler.batching.queue import WaitingQueue
from ebbtide.scheduler.request import Request

from ..make import request
from ..world import Shape, World, greedy, text

HUGE, SMALL = 8000, 100


@dataclass
class Memory:
    """Memory in tokens."""

    capacity: int = 1_000_000_000
    usable_pages: int = 1_000_000_000
    page_size: int = 1


def fair_queue(memory: Memory | None = None, num_rows: int = 1_000_000) -> WaitingQueue:
    return WaitingQueue(by_priority=True, order=partial(FairOrder, memory or Memory(), num_rows))


def new(rid: str, tokens: int, account: str = "", **fields: Any) -> Request:
    """A new request that uses ``tokens`` tokens, ten of them for the output."""
    req = request(rid, prompt=1, max_tokens=10, account=account or rid[0], **fields)
    req.prompt_len = tokens - 10
    req.known = range(tokens - 10)  # type: ignore[assignment]  # a list would need much memory
    return req


def put(queue: WaitingQueue, *requests: Request) -> None:
    for req in requests:
        queue.put(req, front=False)


def rids(queue: WaitingQueue) -> list[str]:
    return [req.rid for req in queue]


def start(queue: WaitingQueue) -> Request:
    """Start the first request."""
    req = next(iter(queue))
    queue.remove(req, started=True)
    return req


def starts(queue: WaitingQueue, count: int) -> list[str]:
    return [start(queue).rid for _ in range(count)]


def end(queue: WaitingQueue, req: Request, outputs: int = 10) -> None:
    req.known = (req.prompt_len + outputs) * [1]
    queue.ended(req, finished=True)


def test_accounts_with_equal_requests_alternate() -> None:
    queue = fair_queue()
    put(queue, *(new(f"a{index}", 2 * QUANTUM) for index in range(3)))
    put(queue, *(new(f"b{index}", 2 * QUANTUM) for index in range(3)))
    assert rids(queue) == ["a0", "b0", "a1", "b1", "a2", "b2"]


def test_an_account_keeps_its_turn_for_a_quantum_of_small_requests() -> None:
    queue = fair_queue()
    put(queue, *(new(f"a{index}", QUANTUM // 2) for index in range(4)))
    put(queue, *(new(f"b{index}", QUANTUM // 2) for index in range(4)))
    assert rids(queue) == ["a0", "a1", "b0", "b1", "a2", "a3", "b2", "b3"]


def test_after_a_huge_request_an_account_waits_until_the_others_had_as_many_tokens() -> None:
    queue = fair_queue()
    put(queue, *(new(f"h{index}", HUGE) for index in range(3)))
    put(queue, *(new(f"s{index}", SMALL) for index in range(300)))
    order = rids(queue)
    first, second, third = (order.index(f"h{index}") for index in range(3))
    assert first == 0
    for small in (second - first - 1, third - second - 1):
        assert small * SMALL == pytest.approx(HUGE, abs=2 * QUANTUM)


def test_an_account_with_huge_requests_does_not_wait_if_no_other_has_any() -> None:
    queue = fair_queue()
    put(queue, *(new(f"h{index}", HUGE) for index in range(3)))
    assert starts(queue, 3) == ["h0", "h1", "h2"]


def test_turns_are_not_saved_while_an_account_has_no_requests() -> None:
    queue = fair_queue()
    put(queue, *(new(f"h{index}", HUGE) for index in range(8)))
    assert starts(queue, 4) == ["h0", "h1", "h2", "h3"]
    put(queue, *(new(f"s{index}", 2 * QUANTUM) for index in range(40)))
    assert "h4" in rids(queue)[: 2 + HUGE // (2 * QUANTUM)]


@pytest.mark.parametrize("seed", range(10))
def test_accounts_that_always_have_requests_use_the_same_number_of_tokens(seed: int) -> None:
    rng = random.Random(seed)
    queue = fair_queue()
    sizes = {account: rng.choice([20, 200, 3000]) for account in "abcd"}
    requests = [new(f"{a}{n}", rng.randint(11, 2 * sizes[a])) for a in sizes for n in range(12_000 // sizes[a])]
    rng.shuffle(requests)
    put(queue, *requests)
    left = Counter(req.account for req in requests)
    used: Counter[str] = Counter()
    for rid in rids(queue):
        req = start(queue)
        assert req.rid == rid  # the order that is shown is the order in which they start
        used[req.account] += req.prompt_len + 10
        left[req.account] -= 1
        if all(left.values()):
            assert max(used.values()) - min(used[account] for account in sizes) <= QUANTUM + 2 * max(sizes.values())


def test_requests_that_have_run_come_first_by_arrival_and_are_not_counted_again() -> None:
    queue = fair_queue()
    put(queue, *(new(f"a{index}", 2 * QUANTUM, arrival=index) for index in range(3)))
    put(queue, *(new(f"b{index}", 2 * QUANTUM, arrival=5 + index) for index in range(3)))
    ran = [start(queue), start(queue)]
    for req in reversed(ran):
        queue.put(req, front=True)
    assert rids(queue) == ["a0", "b0", "a1", "b1", "a2", "b2"]
    assert starts(queue, 2) == ["a0", "b0"]
    assert rids(queue) == ["a1", "b1", "a2", "b2"]


def test_further_choices_come_before_the_other_requests_of_their_account_only() -> None:
    queue = fair_queue()
    put(queue, *(new(f"a{index}", 2 * QUANTUM, arrival=index) for index in range(2)))
    put(queue, *(new(f"b{index}", 2 * QUANTUM, arrival=5 + index) for index in range(3)))
    assert start(queue).rid == "a0"
    for index in range(2):
        queue.put(new(f"a0.{index}", 2 * QUANTUM, arrival=index), front=True)
    assert rids(queue) == ["b0", "a0.0", "b1", "a0.1", "b2", "a1"]


def test_outputs_that_were_longer_than_expected_are_counted_at_the_end() -> None:
    queue = fair_queue()
    long = request("a0", prompt=QUANTUM, max_tokens=5000, account="a")
    put(queue, long, new("a1", QUANTUM), new("b0", QUANTUM), *(new(f"b{index}", QUANTUM) for index in range(1, 9)))
    assert starts(queue, 2) == ["a0", "b0"]
    end(queue, long, outputs=4 * QUANTUM)
    assert rids(queue)[:3] == ["b1", "b2", "b3"]


def test_an_account_expects_outputs_as_long_as_its_last_ones() -> None:
    queue = fair_queue()
    put(queue, *(request(f"a{index}", prompt=10, max_tokens=5000, account="a") for index in range(40)))
    put(queue, new("b0", QUANTUM))
    for _ in range(30):
        end(queue, start(queue), outputs=3000)
    put(queue, *(new(f"b{index}", QUANTUM) for index in range(1, 40)))
    order = rids(queue)
    places = [order.index(f"a{index}") for index in range(33, 36)]
    assert all(after - before > 4 for before, after in pairwise(places))


def test_cached_tokens_of_the_prompt_are_not_counted() -> None:
    queue = fair_queue()
    put(queue, new("a0", HUGE), new("a1", QUANTUM), *(new(f"b{index}", QUANTUM) for index in range(9)))
    cached = next(iter(queue))
    cached.history.cached_tokens = HUGE - QUANTUM
    assert starts(queue, 2) == ["a0", "b0"]
    assert rids(queue)[:2] == ["a1", "b1"]


def test_a_request_that_ends_before_it_starts_costs_nothing() -> None:
    queue = fair_queue()
    gone = new("a0", HUGE)
    put(queue, gone, new("a1", QUANTUM), new("b0", QUANTUM))
    queue.remove(gone)
    queue.ended(gone, finished=False)
    assert gone not in queue
    assert rids(queue) == ["a1", "b0"]
    with pytest.raises(KeyError):
        queue.remove(gone)


def test_nothing_is_remembered_once_no_request_waits_or_runs() -> None:
    queue = fair_queue()
    put(queue, new("a0", HUGE))
    end(queue, start(queue))
    put(queue, new("a1", QUANTUM), new("b0", QUANTUM))
    assert rids(queue) == ["a1", "b0"]


def test_a_higher_priority_comes_first_and_accounts_take_turns_in_each_priority() -> None:
    queue = fair_queue()
    for priority in (0, 5):
        put(queue, *(new(f"a{priority}{index}", QUANTUM, priority=priority) for index in range(2)))
        put(queue, *(new(f"b{priority}{index}", QUANTUM, priority=priority) for index in range(2)))
    assert rids(queue) == ["a50", "b50", "a51", "b51", "a00", "b00", "a01", "b01"]


def test_requests_before_a_new_one_depend_on_its_account() -> None:
    queue = fair_queue()
    put(queue, *(new(f"h{index}", HUGE) for index in range(50)))
    assert queue.num_before(0, "h") == 50
    assert queue.num_before(0, "s") == 1
    assert queue.num_before(5, "h") == 0
    assert queue.num_before(-5, "s") == 50
    put(queue, new("s0", SMALL))
    assert queue.num_before(0, "s") == 3


def test_taking_from_the_head_of_a_long_queue_of_many_accounts_does_not_walk_it() -> None:
    queue = fair_queue()
    put(queue, *(new(f"r{index}", HUGE if index % 7 else SMALL, str(index % 5000)) for index in range(20_000)))
    for _ in range(20_000):  # a minute if each start visited every account
        start(queue)
    assert not len(queue)


def test_one_key_with_many_requests_does_not_delay_the_request_of_another_key() -> None:
    ends = {}
    policies: tuple[Literal["fcfs", "fair"], ...] = ("fcfs", "fair")
    for policy in policies:
        world = World(Shape(num_rows=1, policy=policy, chunk=256))
        for index in range(4):
            world.generate(f"h{index}", text(str(index) * QUANTUM), greedy(10, ignore_eos=True), account="h")
        world.step()
        world.generate("other", text("other"), greedy(5, ignore_eos=True), account="o")
        world.run()
        ends[policy] = [item.rid for item in world.items if item.finish is not None].index("other")
    assert ends == {"fcfs": 4, "fair": 1}


def can_start(queue: WaitingQueue) -> list[str]:
    return [req.rid for req in queue.candidates()]


def test_an_account_does_not_exceed_its_share_of_memory_while_another_one_has_requests() -> None:
    queue = fair_queue(Memory(capacity=1000, usable_pages=900))
    put(queue, new("b0", 100), *(new(f"a{index}", 200) for index in range(5)))
    assert starts(queue, 1) == ["b0"]
    assert can_start(queue) == ["a0", "a1"]  # two accounts: the share is a half
    assert rids(queue) == ["a0", "a1", "a2", "a3", "a4"]
    for rid in ("a0", "a1"):
        assert start(queue).rid == rid
    assert can_start(queue) == []


def test_an_account_can_use_everything_if_no_other_one_has_requests() -> None:
    queue = fair_queue(Memory(capacity=1000, usable_pages=1000))
    put(queue, *(new(f"a{index}", 200) for index in range(5)))
    assert len(can_start(queue)) == 5


def test_an_account_without_a_running_request_can_always_start_one() -> None:
    queue = fair_queue(Memory(capacity=1000, usable_pages=900))
    put(queue, new("b0", 100), new("a0", HUGE), new("a1", HUGE))
    assert starts(queue, 1) == ["b0"]
    assert can_start(queue) == ["a0"]


def test_an_account_can_exceed_its_share_of_memory_if_half_of_it_stays_free() -> None:
    memory = Memory(capacity=10_000, usable_pages=9_900)
    queue = fair_queue(memory)
    put(queue, *(new(f"{account}0", 100) for account in "bcdefghijk"))
    starts(queue, 10)
    put(queue, *(new(f"a{index}", 2000) for index in range(5)))
    first = start(queue)
    assert can_start(queue) == []  # nothing is known about its outputs
    end(queue, first)
    assert start(queue).rid == "a1"
    memory.usable_pages = 9_000
    assert can_start(queue) == ["a2"]
    memory.usable_pages = 5_500
    assert can_start(queue) == []


def test_an_account_does_not_exceed_its_share_of_the_rows() -> None:
    queue = fair_queue(num_rows=8)
    put(queue, new("b0", 100), *(new(f"a{index}", 100) for index in range(8)))
    assert starts(queue, 1) == ["b0"]
    assert can_start(queue) == ["a0", "a1", "a2", "a3"]


def test_running_requests_show_how_long_the_outputs_of_their_account_are() -> None:
    queue = fair_queue(Memory(capacity=20_000, usable_pages=20_000))
    put(queue, new("b0", 100), *(request(f"a{n}", prompt=10, max_tokens=9000, account="a") for n in range(20)))
    assert starts(queue, 2) == ["b0", "a0"]
    before = len(can_start(queue))
    put(queue, first := request("a20", prompt=10, max_tokens=9000, account="a"))
    queue.remove(first, started=True)
    first.known += 1000 * [1]
    assert before > len(can_start(queue)) > 0


def test_a_request_that_ended_or_was_retracted_leaves_its_part_of_the_share() -> None:
    queue = fair_queue(Memory(capacity=1000, usable_pages=500))
    put(queue, new("b0", 100), *(new(f"a{index}", 400) for index in range(5)))
    assert starts(queue, 2) == ["b0", "a0"]
    queue.put(ran := new("a0", 400), front=True)
    assert can_start(queue) == ["a0", "a1"]
    queue.remove(ran, started=True)
    assert can_start(queue) == []
    end(queue, ran)
    assert can_start(queue) == ["a1"]
