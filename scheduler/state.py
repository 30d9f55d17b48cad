"""What all parts of the scheduler look at: the requests, where they are, and what the world must be told."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from ebbtide.messages import AbortReq, PressureEvent, Reply, TokenItem

from .batching.new_token_ratio import NewTokenRatio, OutputLengths
from .batching.policies import WaitingQueue, queue_class
from .grammar.grammar_state import Grammars, NoCompiler
from .memory.accounting import AuditedPool
from .memory.host_tier import HostTier
from .memory.pool import Pool
from .metrics import SchedulerMetrics
from .request import Phase, Request
from .sessions.session import SessionLimits


@dataclass(frozen=True, slots=True)
class Limits:
    """How much one step may do, and in which order requests start."""

    num_rows: int
    context_length: int
    chunked_prefill_size: int = 256
    schedule_policy: str = "fcfs"
    schedule_conservativeness: float = 1.0
    retract_policy: str = "length"
    max_retractions: int = 3
    max_queued_requests: int | None = None
    test_retract_interval: int = 0
    memory_check: str = "strict"
    sessions: SessionLimits = field(default_factory=SessionLimits)


@dataclass(slots=True)
class Output:
    """What the world must be told after a step."""

    items: list[TokenItem] = field(default_factory=list)
    aborts: list[AbortReq] = field(default_factory=list)
    events: list[PressureEvent] = field(default_factory=list)
    replies: list[Reply] = field(default_factory=list)


class EndListener(Protocol):
    """Who must hear of every request's end."""

    def ended(self, req: Request, *, finished: bool) -> None:
        """``req`` is over and holds no memory any more; finished: it ended well."""


@dataclass(slots=True)
class State:
    """The scheduler's state. ``running`` is in order of admission; ``requests`` holds every request not yet ended.

    pools: every pool there is, ``pool`` first; whoever adds one is checked, dumped and measured with the others.
    """

    pool: Pool
    limits: Limits
    ratio: NewTokenRatio
    lengths: OutputLengths = field(default_factory=OutputLengths)
    metrics: SchedulerMetrics = field(default_factory=SchedulerMetrics)
    free_rows: list[int] = field(default_factory=list)
    running: list[Request] = field(default_factory=list)
    waiting: WaitingQueue = field(default_factory=WaitingQueue)
    requests: dict[str, Request] = field(default_factory=dict)
    output: Output = field(default_factory=Output)
    pools: list[AuditedPool] = field(default_factory=list)
    end_listeners: list[EndListener] = field(default_factory=list)
    host_tier: HostTier | None = None  # where retracted requests keep their K/V
    to_front: bool = True
    num_retracted: int = 0  # retracted and not yet running again
    grammars: Grammars = field(init=False)

    def __post_init__(self) -> None:
        self.grammars = Grammars(NoCompiler(), self.metrics)
        self.free_rows = list(range(self.limits.num_rows - 1, -1, -1))
        self.pools.append(self.pool)

    def add_host_tier(self, tier: HostTier) -> None:
        """Retracted requests may keep their K/V there."""
        self.host_tier = tier
        self.pools.append(tier)

    def queue_class(self, req: Request) -> int:
        """The class of the waiting queue that ``req`` belongs to."""
        return queue_class(self.limits.schedule_policy, req)

    def add_request_to_queue(self, req: Request, *, is_retracted: bool) -> None:
        """A new request at the back of its class; one that comes back before all new ones, unless the rules say no."""
        if is_retracted and self.to_front:
            self.waiting.put_front(req, self.queue_class(req))
        else:
            self.waiting.append(req, self.queue_class(req))

    @property
    def num_queued(self) -> int:
        """Requests that do not run: waiting, retracted, or held behind their first choice."""
        return len(self.requests) - len(self.running)

    def filter_batch(self) -> None:
        """Drop from ``running`` what no longer runs."""
        self.running[:] = [req for req in self.running if req.phase is Phase.RUNNING]
