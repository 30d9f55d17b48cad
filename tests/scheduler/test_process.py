"""The scheduler's loop with real sockets and the simulated runner, in one process."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from ebbtide.config import SchedulerConfig
from ebbtide.errors import EbbtideError
from ebbtide.messages import (
    AbortReq,
    GenerateReq,
    Heartbeat,
    SamplingParams,
    Stats,
    ToDetokenizer,
    ToFront,
    TokenItem,
    ToScheduler,
)
from ebbtide.model_runner.sim.sim import SimRunner, SimShape
from ebbtide.runtime.channel import Receiver, Sender
from ebbtide.scheduler.build import Extras, build_scheduler
from ebbtide.scheduler.health.watchdog import LoopMonitor
from ebbtide.scheduler.kv_events.publisher import KvEventPublisher
from ebbtide.scheduler.memory.no_cache import NoCache
from ebbtide.scheduler.process import Channels, Loop

from .make import request

PATIENCE_S = 20.0
SOMEBODY = request("somebody")


class Daemon:
    """The loop of a scheduler process, and the other ends of its channels."""

    def __init__(
        self,
        folder: Path,
        shape: SimShape,
        *,
        alarm_s: float = 30.0,
        events: KvEventPublisher | None = None,
        config: SchedulerConfig | None = None,
    ) -> None:
        self.context: zmq.Context[Any] = zmq.Context()
        inbox, tokens, front = (f"ipc://{folder}/{name}" for name in ("scheduler", "detokenizer", "front"))
        self.tokens: Receiver[ToDetokenizer] = Receiver(self.context, tokens, ToDetokenizer)
        self.front: Receiver[ToFront] = Receiver(self.context, front, ToFront)
        receiver: Receiver[ToScheduler] = Receiver(self.context, inbox, ToScheduler)
        self.channels = Channels(receiver, Sender(self.context, tokens), Sender(self.context, front))
        self.sender: Sender[ToScheduler] = Sender(self.context, inbox)
        self.runner = SimRunner(shape)
        extras = Extras(observer=None if events is None else events.recorder)
        self.scheduler = build_scheduler(config or SchedulerConfig(), self.runner.info, extras)
        self.loop = Loop(self.scheduler, self.runner, self.channels, LoopMonitor(alarm_s), events)
        self.items: list[TokenItem] = []
        self.heard: list[ToFront] = []

    def turn_until(self, done: Callable[[], bool]) -> None:
        """Run iterations of the loop until ``done`` is true. The loop sleeps if it has nothing to do."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            self.loop.turn()
            for batch in self.tokens.drain():
                self.items += batch.items
            self.heard += self.front.drain()
            if done():
                return
        raise AssertionError(f"not done after {PATIENCE_S} s: {self.items} {self.heard}")

    def close(self) -> None:
        """Free the sockets."""
        for end in (
            self.tokens,
            self.front,
            self.channels.inbox,
            self.channels.detokenizer,
            self.channels.send_to_tokenizer,
            self.sender,
        ):
            end.close()
        self.context.term()


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    made = Daemon(tmp_path, SimShape(num_pages=8, page_size=4, num_rows=4))
    yield made
    made.close()


def _counts_tokens(message: ToFront) -> bool:
    return isinstance(message, Stats) and "generation_tokens_total" in message.totals


def generate(rid: str, max_tokens: int, prompt: str = "hello") -> GenerateReq:
    sampling = SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True)
    return GenerateReq(rids=(rid,), prompt=list(prompt.encode()), sampling=sampling)


def test_tokens_go_to_the_detokenizer_step_by_step(daemon: Daemon) -> None:
    daemon.sender.send(generate("a", 6))
    daemon.turn_until(lambda: any(item.finish for item in daemon.items))
    assert [len(item.tokens) for item in daemon.items] == [1] * 6
    assert daemon.items[0].start is not None
    assert daemon.items[-1].finish == "length"


def test_an_abort_goes_to_the_front_and_its_closing_item_to_the_detokenizer(daemon: Daemon) -> None:
    daemon.sender.send(generate("big", 500))
    daemon.turn_until(lambda: any(isinstance(message, AbortReq) for message in daemon.heard))
    (abort,) = [message for message in daemon.heard if isinstance(message, AbortReq)]
    assert (abort.code, abort.status, abort.num_output_tokens) == ("kv_cache_exhausted", 500, 28)
    daemon.turn_until(lambda: daemon.items[-1].finish == "abort")


def test_the_last_statistics_before_sleep_report_no_running_request(daemon: Daemon) -> None:
    daemon.sender.send(generate("a", 6))
    daemon.turn_until(lambda: any(item.finish for item in daemon.items))
    daemon.turn_until(lambda: any(_counts_tokens(message) for message in daemon.heard))
    stats = [message for message in daemon.heard if isinstance(message, Stats)][-1]
    assert (stats.gauges["num_running_reqs"], stats.gauges["gen_throughput"]) == (0, 0)
    assert stats.totals["generation_tokens_total"] == 6
    assert stats.gauges["new_token_ratio"] == pytest.approx(0.7)
    assert "kv_invariant_violations_total" not in stats.totals


def _counts_end(message: ToFront) -> bool:
    return isinstance(message, Stats) and any(key.startswith("num_aborted_requests_total") for key in message.totals)


def test_an_end_before_the_first_step_is_sent_at_once(daemon: Daemon) -> None:
    daemon.turn_until(lambda: any(isinstance(message, Stats) for message in daemon.heard))  # it has become idle
    daemon.scheduler.receive([generate("a", 6), AbortReq("a", "client")], time.monotonic())
    daemon.turn_until(lambda: any(_counts_end(message) for message in daemon.heard))
    stats = [message for message in daemon.heard if isinstance(message, Stats)][-1]
    assert stats.totals["num_aborted_requests_total{reason=client}"] == 1
    assert stats.observations["retractions_per_request"] == [0]


def test_an_idle_scheduler_still_sends_heartbeats(daemon: Daemon) -> None:
    daemon.sender.send(generate("a", 1))
    daemon.turn_until(lambda: sum(isinstance(message, Heartbeat) for message in daemon.heard) >= 3)
    beats = [message for message in daemon.heard if isinstance(message, Heartbeat)]
    assert {beat.source for beat in beats} == {"scheduler"}
    assert beats[-1].handled == 1


def test_an_accounting_violation_is_counted_and_serving_continues(
    daemon: Daemon, caplog: pytest.LogCaptureFixture
) -> None:
    daemon.scheduler.state.pool.uncached += 1
    daemon.sender.send(generate("a", 6))
    daemon.turn_until(lambda: any(item.finish for item in daemon.items))
    assert daemon.scheduler.state.metrics.totals["kv_invariant_violations_total"] == 1
    assert sum("does not balance" in record.message for record in caplog.records) == 1


def test_a_detokenizer_that_stops_reading_ends_the_scheduler(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Sender, "send", lambda self, message: False)
    daemon.scheduler.receive([generate("a", 6)], 0.0)
    with pytest.raises(EbbtideError, match="the queue to the detokenizer is full"):
        daemon.turn_until(lambda: False)


def test_a_blocked_scheduler_waits_a_moment_and_is_not_idle(daemon: Daemon) -> None:
    state = daemon.scheduler.state
    daemon.scheduler.memory_check = "off"  # the check would report the pages as leaked
    held = state.pool.token_to_kv_pool_allocator.take(8, SOMEBODY)
    daemon.sender.send(generate("a", 6))
    daemon.turn_until(lambda: bool(daemon.scheduler.state.requests))
    daemon.loop.turn()
    assert (daemon.scheduler.idle, daemon.items) == (False, [])
    daemon.scheduler.state.pool.token_to_kv_pool_allocator.give(held, SOMEBODY)
    daemon.turn_until(lambda: any(item.finish for item in daemon.items))


def test_the_loop_never_sleeps_while_a_request_can_continue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request is retracted in every step. Results in flight are collected first; until then nothing is planned."""
    config = SchedulerConfig(test_retract_interval=1, max_retractions=-1)
    daemon = Daemon(tmp_path, SimShape(num_pages=8, page_size=4, num_rows=4), config=config)
    state = daemon.scheduler.state
    waits: list[float] = []
    drain = daemon.channels.inbox.drain

    def noted(wait_s: float = 0.0) -> list[ToScheduler]:
        if state.requests:
            waits.append(wait_s)
        return drain(wait_s)

    monkeypatch.setattr(daemon.channels.inbox, "drain", noted)
    daemon.sender.send(generate("a", 20))
    daemon.turn_until(lambda: any(item.finish for item in daemon.items))
    assert len(waits) > 20
    assert set(waits) == {0.0}
    daemon.close()


def test_the_prefix_cache_can_be_switched_off() -> None:
    info = SimRunner(SimShape(num_pages=8, page_size=4, num_rows=4)).info
    scheduler = build_scheduler(SchedulerConfig(disable_radix_cache=True), info)
    assert isinstance(scheduler.state.pool.tree_cache, NoCache)
    assert scheduler.planner.chunked_prefill_size == 256


def test_requests_that_are_never_admitted_are_reported_in_the_heartbeats(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    daemon = Daemon(tmp_path, SimShape(num_pages=8, page_size=4, num_rows=4), alarm_s=0.2)
    state = daemon.scheduler.state
    daemon.scheduler.memory_check = "off"
    state.pool.token_to_kv_pool_allocator.take(8, SOMEBODY)
    daemon.sender.send(generate("a", 6))
    daemon.turn_until(lambda: any(isinstance(message, Heartbeat) and message.reason for message in daemon.heard))
    beat = [message for message in daemon.heard if isinstance(message, Heartbeat)][-1]
    assert (beat.state, beat.reason) == ("blocked", "a: needs 2 pages and 0 are usable")
    assert beat.stalled_s >= 0.2
    assert sum("no request was admitted" in record.message for record in caplog.records) >= 1
    daemon.close()
