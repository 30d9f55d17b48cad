"""Simulates one load on one pool with one policy, with the real scheduler on a virtual clock."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from typing import Literal

from ebbtide.scheduler.build import Extras, build_scheduler

from ...config import SchedulerConfig
from ...errors import EbbtideError
from ...messages import AbortReq, GenerateReq, PoolInfo, RunnerInfo, SamplingParams, TokenItem, ToScheduler
from ...paging import pages_for
from ...plan import StepPlan
from ...step_cost import StepCost
from .cost_runner import EOS, CostRunner
from .rules import Policy
from .trace import TraceRequest

OWN_TOKENS = 10_000_000  # first token id of unshared prompt tokens
PREFIX_TOKENS = 20_000_000  # first token id of shared prefixes
TURNS_WITHOUT_STEP = 3  # maximum number of consecutive loop iterations without a step at one virtual time


@dataclass(frozen=True, slots=True)
class Machine:
    """The parameters of the simulated machine, except its pool size.

    Attributes:
        num_rows: maximum number of running requests.
        chunk: maximum number of prefill tokens per step.
        headroom: pages per running request that a retraction frees beyond the next step's demand; None for the policy's
            default.
        memory_check: as --memory-check; "off" is faster.
    """

    page_size: int = 16
    num_rows: int = 64
    chunk: int = 2048
    context_length: int = 32768
    schedule_policy: Literal["fcfs", "lpm", "priority", "fair"] = "fcfs"
    max_retractions: int = 3
    headroom: int | None = None
    memory_check: Literal["strict", "off"] = "strict"
    cost: StepCost = field(default_factory=StepCost)


@dataclass(slots=True)
class Record:
    """The result of one request. Times are in seconds of the virtual clock.

    Attributes:
        finish: finish reason; "abort" if the request was aborted or refused, "left" if its client
            disconnected.
    """

    request: TraceRequest
    first_token_s: float | None = None
    end_s: float = 0.0
    num_outputs: int = 0
    num_retractions: int = 0
    finish: str | None = None


@dataclass(slots=True)
class Run:
    """The result of a simulated load.

    Attributes:
        usage: for each step, the time in seconds, the number of tokens in use, and the number of waiting requests.
    """

    records: list[Record]
    usage: list[tuple[float, int, int]] = field(default_factory=list)
    computed_tokens: int = 0
    recomputed_tokens: int = 0
    num_retractions: int = 0
    num_steps: int = 0

    @property
    def peak_tokens(self) -> int:
        """Peak number of tokens in use, counted in whole pages, without cached pages that no request uses."""
        return max((used for _, used, _ in self.usage), default=0)


class Simulation:
    """Drives one scheduler through one load."""

    def __init__(
        self, requests: list[TraceRequest], machine: Machine, num_pages: int, policy: Policy, parameter: float
    ) -> None:
        """requests: in order of arrival. parameter: value of the policy's admission parameter, see ``Policy``."""
        self._requests = requests
        self._cost = machine.cost
        pool = PoolInfo(num_pages, machine.page_size)
        info = RunnerInfo(machine.context_length, 2 * PREFIX_TOKENS, (pool,), machine.num_rows, (EOS,))
        self._runner = CostRunner(requests, info)
        config = SchedulerConfig(
            chunked_prefill_size=machine.chunk,
            schedule_policy=machine.schedule_policy,
            schedule_conservativeness=parameter if policy.parameter == "conservativeness" else 1.0,
            max_retractions=machine.max_retractions if policy.bounded else -1,
            memory_check=machine.memory_check,
        )
        policies = policy.policies(parameter, requests)
        if policy.bounded and machine.headroom is not None:
            policies = replace(policies, headroom=machine.headroom)
        self._scheduler = build_scheduler(config, info, Extras(policies=policies))
        self._pool = self._scheduler.state.pool
        self._context_length = machine.context_length
        self._pool_tokens = num_pages * machine.page_size
        self._prefixes: dict[str | int, int] = {}
        self._sent = 0
        self._leaving: list[tuple[float, int]] = []  # heap of (time at which the client disconnects, request)
        self._now = 0.0
        self._run = Run([Record(request) for request in requests])

    def run(self) -> Run:
        """Run until all requests have ended. Raises EbbtideError if the scheduler makes no progress, which is a bug."""
        scheduler = self._scheduler
        turns = 0
        while self._sent < len(self._requests) or not scheduler.idle:
            self._receive()
            plan = scheduler.next_step(self._now)
            if plan is None:
                self._read()
                turns += 1
                if scheduler.idle or turns > TURNS_WITHOUT_STEP:
                    self._wait()
                continue
            turns = 0
            self._step(plan)
            if scheduler.idle:
                scheduler.state.ratio.reset()
        totals = scheduler.state.metrics.totals
        self._run.recomputed_tokens = totals["num_recomputed_tokens_total"]
        self._run.num_retractions = totals["num_retracted_requests_total"]
        return self._run

    def _receive(self) -> None:
        """Send the requests that have arrived to the scheduler, and the aborts of clients that have left."""
        messages: list[ToScheduler] = []
        while self._sent < len(self._requests) and self._requests[self._sent].arrival_s <= self._now:
            request = self._requests[self._sent]
            messages.append(self._message(self._sent))
            if request.leaves_s is not None:
                heappush(self._leaving, (request.arrival_s + request.leaves_s, self._sent))
            self._sent += 1
        while self._leaving and self._leaving[0][0] <= self._now:
            index = heappop(self._leaving)[1]
            record = self._run.records[index]
            if record.finish is None:
                record.end_s, record.finish = self._now, "left"
                messages.append(AbortReq(str(index), "client"))
        self._scheduler.receive(messages, self._now)

    def _message(self, index: int) -> GenerateReq:
        request = self._requests[index]
        prompt = [OWN_TOKENS + index] * (request.prompt_len - request.prefix_len)
        if request.prefix_id is not None:
            number = self._prefixes.setdefault(request.prefix_id, len(self._prefixes))
            prompt = [PREFIX_TOKENS + number] * request.prefix_len + prompt
        limit = max_tokens_of(request, self._context_length, self._pool_tokens)
        sampling = SamplingParams(max_tokens=limit, temperature=0.0, seed=index)
        return GenerateReq((str(index),), prompt, sampling, priority=request.priority, account=request.account)

    def _wait(self) -> None:
        """Advance the clock to the next arrival."""
        if self._sent < len(self._requests):
            self._now = max(self._now, self._requests[self._sent].arrival_s)
        elif not self._scheduler.idle:
            waiting = len(self._scheduler.state.requests)
            raise EbbtideError(f"the simulated scheduler is stuck with {waiting} requests")

    def _step(self, plan: StepPlan) -> None:
        run = self._run
        self._runner.submit(plan)
        books = self._pool
        in_use = books.capacity - books.usable_pages
        run.usage.append((self._now, in_use * books.page_size, self._scheduler.state.lifecycle.num_queued))
        self._now += self._cost.step_s(plan.items)
        run.num_steps += 1
        run.computed_tokens += sum(1 if item.tokens is None else len(item.tokens) for item in plan.items)
        self._scheduler.settle(self._runner.collect())
        self._read()

    def _read(self) -> None:
        for item in self._scheduler.take_output().items:
            self._record(item)

    def _record(self, item: TokenItem) -> None:
        record = self._run.records[int(item.rid)]
        if item.tokens and record.first_token_s is None:
            record.first_token_s = self._now
        record.num_outputs += len(item.tokens)
        if item.finish is not None and record.finish is None:
            record.end_s = self._now
            record.finish = item.finish
        if item.pressure is not None:
            record.num_retractions = item.pressure.num_retractions


def max_tokens_of(request: TraceRequest, context_length: int, pool_tokens: int) -> int:
    """Return the max_tokens that the front process sets. Without a client's limit, context and pool limit it."""
    rest = context_length - request.prompt_len
    limit = min(rest, pool_tokens - request.prompt_len + 1) if request.max_tokens is None else request.max_tokens
    return max(min(limit, rest), 1)


def ample_pages(requests: list[TraceRequest], machine: Machine) -> int:
    """Return a pool size in pages with which no request waits for memory.

    It is the demand of a batch of the requests with the longest prompts, each with the largest possible reservation.
    """
    longest = max(512, max(request.num_outputs for request in requests))
    largest = sorted((request.prompt_len for request in requests), reverse=True)[: machine.num_rows]
    return sum(pages_for(prompt_len + longest, machine.page_size) + 2 for prompt_len in largest)
