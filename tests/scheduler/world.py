"""The test bench: the real scheduler with the simulated runner. The accounting is checked after every step."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Literal

from ebbtide.config import SchedulerConfig
from ebbtide.errors import GrammarError, PlanError
from ebbtide.grammar import Guidance, grammar_of
from ebbtide.messages import (
    MAMBA_POOL,
    AbortReq,
    GenerateReq,
    PhaseChange,
    PoolInfo,
    PressureEvent,
    PressureUsage,
    Reply,
    SamplingParams,
    TokenItem,
    TokenLogprob,
    ToScheduler,
    UseVocabulary,
)
from ebbtide.model_runner.sim.sim import SimRunner, SimShape
from ebbtide.plan import ItemFailure
from ebbtide.scheduler.build import Extras, build_scheduler
from ebbtide.scheduler.failures import Failures
from ebbtide.scheduler.grammar.grammar_state import Compiled, GrammarCompiler
from ebbtide.scheduler.memory.node import CacheObserver
from ebbtide.scheduler.request import Request
from ebbtide.tokenization.vocabulary import SIM_VOCAB_SIZE, sim_vocabulary

from .multi_token_runner import MultiTokenRunner
from .second_pool import SecondPool

GUIDANCE = Guidance(sim_vocabulary(), SIM_VOCAB_SIZE, ())
MAX_TURNS = 30_000
STUCK_AFTER = 200  # number of steps without a token, a computed prompt or a finished request
ALMOST_CERTAIN = 1 - 1e-11  # a risk at which admission reserves almost no memory, so that requests are retracted


@dataclass
class Compiler:
    """Compiles grammars for the simulated model; a result is available after more than ``delay`` polls."""

    delay: int = 0
    asked: Counter[str] = field(default_factory=Counter)

    def set_vocabulary(self, vocabulary: UseVocabulary) -> None:
        """Do nothing: the vocabulary of the simulated model is used."""

    def poll(self, grammar: str) -> Compiled | None:
        self.asked[grammar] += 1
        if self.asked[grammar] <= self.delay:
            return None
        try:
            return Compiled(GUIDANCE.compile(grammar))
        except GrammarError as error:
            return Compiled(None, str(error))

    def drain_durations(self) -> list[float]:
        return []


def grammar(lark: str) -> str:
    """A grammar in Lark as requests carry it."""
    return grammar_of(lark, special_ids={})


@dataclass
class Outcome:
    """All output that the world received for one request."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    prompt_logprobs: list[tuple[int, TokenLogprob]] = field(default_factory=list)  # prompt tokens from the second on
    finish: str | None = None
    aborts: list[AbortReq] = field(default_factory=list)
    cached_tokens: int = 0
    prompt_tokens: int = 0
    ends: int = 0
    pressure: PressureUsage | None = None
    embedding: bytes = b""


@dataclass(frozen=True)
class Shape:
    """Sizes of a world; pages and tokens as in ``RunnerInfo``."""

    num_pages: int = 256
    page_size: int = 4
    num_rows: int = 8
    chunk: int = 32
    policy: Literal["fcfs", "lpm", "priority", "fair"] = "fcfs"
    overlap: int = 1
    cache: bool = True
    max_retractions: int = 3
    retract_policy: str = "length"
    retract_interval: int = 0
    max_queued: int | None = None
    host_pages: int = 0
    second_host_pages: int | None = None  # host pages of the second pool; None for as many as of the first one
    memory_check: Literal["strict", "quarantine", "off"] = "strict"
    context_length: int = 4096
    conservativeness: float = 1.0
    risk: float | None = None
    max_samples: int = 1
    sessions: bool = False
    max_sessions: int = 1000
    session_timeout: float = 1e9
    max_per_owner: int | None = None
    second: PoolInfo | None = None  # a second pool
    state_slots: int = 0  # slots of a pool of recurrent states; 0 for none
    save_every: int = 8  # output tokens between two states that are kept
    confines_faults: bool = False  # if True, exceptions end requests, as in the daemon; otherwise they are raised


class RaisingFailures(Failures):
    """Raises exceptions instead of confining them to a request. Invalid logits end requests as usual."""

    def end_item(self, req: Request, failure: ItemFailure, step: int) -> None:
        if not failure.invalid_logits:
            raise PlanError(failure.problem)
        super().end_item(req, failure, step)

    def end(self, req: Request, error: Exception, occasion: str) -> None:
        raise error

    def end_message(self, message: ToScheduler, error: Exception) -> None:
        raise error


class World:
    """Drives a scheduler step by step on a clock that counts steps."""

    def __init__(
        self,
        shape: Shape | None = None,
        observer: CacheObserver | None = None,
        compiler: GrammarCompiler | None = None,
    ) -> None:
        self.shape = shape = shape or Shape()
        sim = SimShape(
            shape.num_pages,
            shape.page_size,
            shape.num_rows,
            shape.context_length,
            shape.overlap,
            shape.host_pages,
            _further_pools(shape),
            () if shape.second is None else (_host_pages_of_second(shape),),
        )
        self.runner = SimRunner(sim) if shape.max_samples == 1 else MultiTokenRunner(sim, shape.max_samples)
        self._freed: dict[str, list[int]] = {pool.name: [] for pool in self.runner.info.pools}
        config = SchedulerConfig(
            chunked_prefill_size=shape.chunk,
            schedule_policy=shape.policy,
            schedule_conservativeness=shape.conservativeness,
            retraction_risk=shape.risk,
            disable_radix_cache=not shape.cache,
            max_retractions=shape.max_retractions,
            retract_policy=shape.retract_policy,
            test_retract_interval=shape.retract_interval,
            max_queued_requests=shape.max_queued,
            memory_check=shape.memory_check,
            enable_streaming_session=shape.sessions,
            max_sessions=shape.max_sessions,
            session_timeout=shape.session_timeout,
            max_sessions_per_key=shape.max_per_owner,
            state_checkpoint_interval=shape.save_every,
        )
        extras = Extras(
            compiler=compiler or Compiler(),
            observer=observer,
            on_free={name: freed.extend for name, freed in self._freed.items()},
            pools={"second": self._build_second},
        )
        self.scheduler = build_scheduler(config, self.runner.info, extras)
        if not shape.confines_faults:
            state = self.scheduler.state
            self.scheduler.failures = RaisingFailures(state.lifecycle, state.outbox, state.metrics)
        self.pool = self.scheduler.state.pool
        self.allocator = self.pool.token_to_kv_pool_allocator
        self.checker = self.scheduler.checker
        self.outcomes: dict[str, Outcome] = {}
        self.prompts: dict[str, int] = {}  # prompt lengths, for loads that keep them
        self.events: list[PressureEvent] = []
        self.phases: list[PhaseChange] = []
        self.items: list[TokenItem] = []
        self.replies: dict[str, Reply] = {}
        self.steps = 0
        self.skipped_s = 0.0  # seconds in which no step ran
        self.peak_pages = 0  # maximum number of pages that running requests held at the same time
        self.turns = 0
        self.inbox: deque[ToScheduler] = deque()

    @property
    def now(self) -> float:
        """Seconds: one for each step."""
        return self.steps + self.skipped_s

    def send(self, *messages: ToScheduler) -> None:
        """Queue messages for the next step."""
        self.inbox.extend(messages)

    def generate(self, rid: str, prompt: list[int], sampling: SamplingParams, **kwargs: object) -> None:
        """Send one request with one choice."""
        self.send(GenerateReq(rids=(rid,), prompt=prompt, sampling=sampling, **kwargs))  # type: ignore[arg-type]

    def step(self) -> None:
        """Run one iteration of the loop; the accounting must balance after it."""
        self.turns += 1
        assert self.turns < MAX_TURNS, "the world was expected to be over long ago"
        self.receive()
        self.dispatch()
        if self.scheduler.num_in_flight:
            self.collect()

    def receive(self) -> None:
        """Pass the queued messages to the scheduler."""
        self.scheduler.receive(self.inbox, self.now)
        self.inbox.clear()

    def dispatch(self) -> bool:
        """Plan and submit steps until the runner accepts no more. Returns True if a step was submitted."""
        dispatched = False
        while self.scheduler.num_in_flight < self.shape.overlap:
            plan = self.scheduler.next_step(self.now)
            if plan is None:
                break
            self.runner.submit(plan)
            self._poison_freed()
            dispatched = True
        self.scheduler.self_check_during_busy()
        return dispatched

    def _poison_freed(self) -> None:
        """Overwrite freed pages after the plan that may copy them to the host, unless they were allocated again."""
        for number, pool in enumerate(self.scheduler.state.kv_pools):
            freed = self._freed[pool.name]
            self.runner.poison([page for page in freed if pool.ledger.owner(page) is None], pool=number)
            freed.clear()

    def _build_second(self, info: PoolInfo) -> SecondPool:
        return SecondPool(info, on_free=self._freed[info.name].extend)

    @property
    def second(self) -> SecondPool:
        """The second pool."""
        pool = self.scheduler.state.kv_pools[1]
        assert isinstance(pool, SecondPool)
        return pool

    def collect(self) -> None:
        """Settle the oldest step and read what it produced."""
        self.scheduler.settle(self.runner.collect())
        self.steps += 1
        self.peak_pages = max(self.peak_pages, self.pool.uncached)
        self.read()
        self.scheduler.self_check_during_busy()

    def read(self) -> None:
        """Take the scheduler's output into ``outcomes``."""
        output = self.scheduler.take_output()
        for item in output.items:
            self._take(item)
        self.events += output.events
        self.phases += output.phases
        self.replies |= {reply.call: reply for reply in output.replies}
        for abort in output.aborts:
            self.outcomes.setdefault(abort.rid, Outcome()).aborts.append(abort)

    def run(self, max_steps: int = 100_000) -> dict[str, Outcome]:
        """Run until all requests have ended. Fails if there is no progress. The full check must pass at the end."""
        quiet = 0
        while self.inbox or not self.scheduler.idle:
            before = self._progress()
            self.step()
            self.read()
            quiet = 0 if self._progress() != before else quiet + 1
            assert quiet < STUCK_AFTER, (
                f"no progress for {quiet} steps: {[req.rid for req in self.scheduler.state.running]}"
            )
            assert self.steps < max_steps
        self.step()
        self.scheduler.on_idle()
        return self.outcomes

    def _progress(self) -> tuple[int, int, int]:
        state = self.scheduler.state
        return (
            sum(len(outcome.tokens) for outcome in self.outcomes.values()),
            len(state.requests),
            sum(req.computed for req in state.running),
        )

    def _take(self, item: TokenItem) -> None:
        self.items.append(item)
        outcome = self.outcomes.setdefault(item.rid, Outcome())
        assert outcome.finish is None, f"{item.rid} got tokens after its end"
        outcome.tokens += item.tokens
        outcome.logprobs += item.logprobs or []
        if item.prompt is not None:
            outcome.prompt_logprobs += zip(item.prompt.tokens, item.prompt.logprobs, strict=True)
        if item.start is not None:
            outcome.cached_tokens = item.start.cached_tokens
            outcome.prompt_tokens = item.start.prompt_tokens
        if item.finish is not None:
            outcome.finish = item.finish
            outcome.ends += 1
            outcome.pressure = item.pressure
            outcome.embedding = item.embedding


def _further_pools(shape: Shape) -> tuple[PoolInfo, ...]:
    pools = () if shape.second is None else (shape.second,)
    states = PoolInfo(shape.state_slots, shape.context_length, MAMBA_POOL)
    return (*pools, states) if shape.state_slots else pools


def _host_pages_of_second(shape: Shape) -> int:
    return shape.host_pages if shape.second_host_pages is None else shape.second_host_pages


def greedy(max_tokens: int, **kwargs: object) -> SamplingParams:
    """Plain greedy sampling."""
    return SamplingParams(max_tokens=max_tokens, temperature=0.0, **kwargs)  # type: ignore[arg-type]


def text(value: str) -> list[int]:
    """The simulated model's token ids of a text."""
    return list(value.encode())
