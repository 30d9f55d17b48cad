"""The objects that the parts of one scheduler share. ``build.py`` assembles them, and ``Scheduler`` holds them."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from ebbtide.plan import StepPlan

from .batching.new_token_ratio import NewTokenRatio
from .batching.queue import WaitingQueue
from .batching.wait_estimate import WaitEstimate
from .gates import Gates
from .grammar.grammar_state import Grammars
from .lifecycle import Lifecycle
from .memory.accounting import AuditedPool
from .memory.host_tier import HostTier
from .memory.kv_pool import FurtherPool, KvPool
from .memory.pool import Pool
from .metrics import SchedulerMetrics
from .outbox import Outbox, Output
from .request import Request

# Plans that were submitted to the runner and are not settled yet, each with the requests of its items. A request is
# replaced by None if a recovery has released its memory.
StepsInFlight = deque[tuple[StepPlan, list[Request | None]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """The state of one scheduler. Tests, dumps and metrics read it.

    Attributes:
        pool: the pool with the prefix cache.
        more_pools: the other pools that running requests use.
        kv_pools: the pools that running requests use, ``pool`` first.
        pools: ``kv_pools`` and the host tier; the checker, the dump and the metrics loop over this list.
        host_tier: host memory for the K/V of retracted requests, if enabled; also in ``pools``.
    """

    lifecycle: Lifecycle
    pool: Pool
    more_pools: Sequence[FurtherPool]
    kv_pools: list[KvPool]
    pools: list[AuditedPool]
    host_tier: HostTier | None
    ratio: NewTokenRatio
    metrics: SchedulerMetrics
    outbox: Outbox
    gates: Gates
    grammars: Grammars
    waits: WaitEstimate = field(default_factory=WaitEstimate)
    steps_in_flight: StepsInFlight = field(default_factory=deque)

    @property
    def requests(self) -> dict[str, Request]:
        """All open requests by id."""
        return self.lifecycle.requests

    @property
    def running(self) -> list[Request]:
        """Running requests in order of admission."""
        return self.lifecycle.running

    @property
    def waiting(self) -> WaitingQueue:
        """The waiting queue."""
        return self.lifecycle.waiting

    @property
    def free_rows(self) -> list[int]:
        """Rows without a request."""
        return self.lifecycle.free_rows

    @property
    def num_retracted(self) -> int:
        """Number of requests that were retracted and are not running again yet."""
        return self.lifecycle.num_retracted

    @property
    def output(self) -> Output:
        """The messages that have not been drained yet."""
        return self.outbox.output
