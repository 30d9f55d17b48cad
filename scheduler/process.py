"""The scheduler process: connects the scheduler to the sockets, the clock and the model runner."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import Any

import zmq

from ebbtide.config import Ranks, SchedulerSection
from ebbtide.errors import EbbtideError
from ebbtide.messages import PhaseChanges, PoolInfo, ToDetokenizer, ToFront, TokenBatch, ToScheduler
from ebbtide.model_runner import RankSenders, build_runner
from ebbtide.plan import Runner
from ebbtide.runtime.channel import Receiver, Sender
from ebbtide.runtime.child_main import Handshake, run_child
from ebbtide.runtime.garbage import without_collections

from .build import Extras, build_scheduler
from .core import Scheduler
from .grammar.grammar_compiler import GrammarCompilerThread
from .health.watchdog import LoopMonitor, create_scheduler_watchdog
from .kv_events.publisher import KvEventPublisher, open_kv_events
from .outbox import Output

log = logging.getLogger(__name__)

IDLE_WAIT_S = 0.5  # also the longest time between two heartbeats of an idle scheduler
BLOCKED_WAIT_S = 0.05
GATED_WAIT_S = 0.002  # a condition that becomes met does not wake the loop; most grammars compile within milliseconds
STATS_EVERY_S = 0.1
HEARTBEAT_EVERY_S = 0.5


@dataclass(frozen=True, slots=True)
class Channels:
    """The sockets of the scheduler process."""

    inbox: Receiver[ToScheduler]
    detokenizer: Sender[ToDetokenizer]
    send_to_tokenizer: Sender[ToFront]


@dataclass(slots=True)
class Reporter:
    """Sends heartbeats twice a second, and statistics at most every 100 ms and when the scheduler becomes idle."""

    scheduler: Scheduler
    channels: Channels
    monitor: LoopMonitor
    last_stats_s: float = 0.0
    last_heartbeat_s: float = 0.0
    last_tokens: int = 0
    reported_idle: bool = False
    reported_changes: tuple[int, int, int] = (0, 0, 0)
    throughput: float = 0.0

    def report(self, now: float) -> None:
        """Send the statistics and the heartbeat if they are due."""
        idle = self.scheduler.idle
        changed = not (idle and self.reported_idle) or self.scheduler.idle_changes != self.reported_changes
        if changed and now - self.last_stats_s >= STATS_EVERY_S:
            self._stats(now, idle=idle)
        if now - self.last_heartbeat_s >= HEARTBEAT_EVERY_S:
            self.last_heartbeat_s = now
            self.channels.send_to_tokenizer.send(
                self.monitor.heartbeat(self.scheduler, self.channels.inbox.handled, now)
            )

    def became_idle(self, now: float) -> None:
        """Send the final statistics after the last request has ended."""
        self._stats(now, idle=True)

    def _stats(self, now: float, *, idle: bool) -> None:
        tokens = self.scheduler.state.metrics.totals["generation_tokens_total"]
        elapsed = max(now - self.last_stats_s, 1e-9)
        self.throughput = 0.0 if idle else (tokens - self.last_tokens) / elapsed
        self.last_stats_s, self.last_tokens, self.reported_idle = now, tokens, idle
        self.reported_changes = self.scheduler.idle_changes
        stats = self.scheduler.snapshot()
        stats.gauges["gen_throughput"] = self.throughput
        self.channels.send_to_tokenizer.send(stats)


class Loop:
    """Runs the loop: receive → next step → run → settle → send.

    When idle, it runs the full check, reports and sleeps.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        runner: Runner,
        channels: Channels,
        monitor: LoopMonitor,
        kv_events: KvEventPublisher | None = None,
    ) -> None:
        self._scheduler = scheduler
        self._runner = runner
        self._channels = channels
        self._monitor = monitor
        self._kv_events = kv_events
        self._reporter = Reporter(scheduler, channels, monitor)
        self._checked = True
        self._wait_s = 0.0

    def turn(self) -> None:
        """Run one iteration. Wait for a message only if the last iteration had nothing to do."""
        scheduler = self._scheduler
        messages = self._channels.inbox.drain(self._wait_s)
        started = time.monotonic()
        if messages:
            self._monitor.work_arrived(started)
        scheduler.receive(messages, started)
        plan = scheduler.next_step(started)
        if plan is not None:
            self._monitor.step_planned(scheduler, plan, started)
            self._runner.submit(plan)
            self._checked = False
        settles = scheduler.num_in_flight and (
            plan is None or scheduler.num_in_flight >= self._runner.info.max_in_flight
        )
        if settles:
            scheduler.settle(self._runner.collect())
            scheduler.state.metrics.observe("scheduler_step_seconds", time.monotonic() - started)
        scheduler.state.metrics.stamp(time.monotonic())
        self._monitor.iteration_ended(scheduler, self.send_output(), time.monotonic())
        scheduler.self_check_during_busy()
        self.publish_kv_events()
        if scheduler.idle and not self._checked:
            self.on_idle()
        self._reporter.report(time.monotonic())
        self._wait_s = self._idle_time(stepped=plan is not None or bool(settles))

    def on_idle(self) -> None:
        """Run the full check, reset the new-token ratio, and send statistics and KV events.

        Called after the last request has ended.
        """
        self._checked = True
        self._scheduler.on_idle()
        self._reporter.became_idle(time.monotonic())
        self.publish_kv_events()

    def _idle_time(self, *, stepped: bool) -> float:
        if stepped or self._scheduler.num_in_flight:
            return 0.0
        if self._scheduler.state.gates.num_waiting:
            return GATED_WAIT_S
        return IDLE_WAIT_S if self._scheduler.idle else BLOCKED_WAIT_S

    def publish_kv_events(self) -> None:
        """Publish the changes of the prefix cache, if KV events are enabled."""
        if self._kv_events is not None:
            self._kv_events.publish(time.time())

    def send_output(self) -> Output:
        """Send the output to the detokenizer first: the front process holds an abort back until the text arrives."""
        output = self._scheduler.take_output()
        if output.items and not self._channels.detokenizer.send(TokenBatch(output.items)):
            raise EbbtideError("the queue to the detokenizer is full: the detokenizer has stopped reading its messages")
        if output.phases:  # before the aborts and the pressure events, which refer to them
            self._channels.send_to_tokenizer.send(PhaseChanges(output.phases))
        for abort in output.aborts:
            self._channels.send_to_tokenizer.send(abort)
        for event in output.events:
            self._channels.send_to_tokenizer.send(event)
        for reply in output.replies:
            self._channels.send_to_tokenizer.send(reply)
        return output


def main(section: SchedulerSection, handshake: Handshake) -> None:
    """Load the model, report its measured sizes, and serve until the process is terminated."""
    watchdog = create_scheduler_watchdog(section.watchdog, section.dump_path)
    watchdog.start()

    def progress(text: str, share: float | None = None) -> None:
        watchdog.loop.loading_started(text)
        handshake.progress(text, share)

    context: zmq.Context[Any] = zmq.Context()
    kv_events = open_kv_events(context, section.scheduler, section.runner.tokens_per_page)
    with without_collections():
        runner = build_runner(section.files, section.runner, progress, _connect(context, section.ranks))
    addresses = section.addresses
    inbox: Receiver[ToScheduler] = Receiver(context, addresses.scheduler, ToScheduler)
    channels = Channels(inbox, Sender(context, addresses.detokenizer), Sender(context, addresses.front))
    info = runner.info
    if len(info.pools) > 1:
        log.info("KV pools: %s", "; ".join(map(_pool_line, info.pools)))
    extras = Extras(
        compiler=GrammarCompilerThread(info.vocab_size, info.eos_token_ids),
        observer=None if kv_events is None else kv_events.recorder,
        records_phases=section.records_phases,
    )
    scheduler = build_scheduler(section.scheduler, info, extras)
    loop = Loop(scheduler, runner, channels, watchdog.loop, kv_events)
    watchdog.loop.serving_started()
    handshake.ready(info)
    while True:
        loop.turn()


def _pool_line(pool: PoolInfo) -> str:
    reads = "all tokens" if pool.window is None else f"a window of {pool.window} tokens"
    return f"{pool.name} with {pool.num_pages * pool.page_size} tokens, for layers that read {reads}"


def _connect(context: zmq.Context[Any], ranks: Ranks | None) -> RankSenders | None:
    if ranks is None:
        return None
    return RankSenders(ranks, [Sender(context, address) for address in ranks.addresses])


if __name__ == "__main__":
    run_child(SchedulerSection, "scheduler", main)
