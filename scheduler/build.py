"""Assembles a scheduler for the scheduler process, the simulator, the benchmarks and the tests."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from ebbtide.config import SchedulerConfig
from ebbtide.messages import MAMBA_POOL, PoolInfo, RunnerInfo

from .batching.admitter import Admitter
from .batching.arrival_order import ArrivalOrder
from .batching.fair_order import FairOrder
from .batching.look_ahead import LookAhead
from .batching.output_lengths import OutputLengths
from .batching.plan_items import PlanItems
from .batching.planner import Planner
from .batching.policies import ADMISSION_ORDERS
from .batching.preemption import ForcedRetraction, Preemption
from .batching.queue import PriorityClass, WaitingQueue
from .batching.scheduling_policies import AdmissionRule, SchedulingPolicies, default_policies
from .control import Control
from .core import Scheduler
from .deadlines import Deadlines
from .dispatcher import Dispatcher
from .failures import Failures
from .gates import Gates
from .grammar.grammar_state import GrammarCompiler, Grammars, NoCompiler
from .health.inspection import Inspector
from .health.invariant_checker import InvariantChecker
from .health.recovery import Recovery
from .item_results import ItemResults
from .lifecycle import Lifecycle
from .memory.accounting import AuditedPool
from .memory.allocator import PageAllocator
from .memory.host_tier import HostTier
from .memory.kv_pool import FurtherPool
from .memory.no_cache import NoCache
from .memory.node import CacheObserver
from .memory.pool import Pool
from .memory.prefix_cache import BasePrefixCache
from .memory.radix_cache import RadixCache
from .memory.recurrent_state.state_pool import StatePool
from .memory.session_aware_cache import SessionAwareCache
from .memory.sliding_window.window_pool import WindowPool
from .metrics import SchedulerMetrics
from .outbox import Outbox
from .phase_recorder import PhaseRecorder
from .request_memory import Memory
from .retraction import Retractor
from .sessions.session import NoSessionKv, SessionKvStore, SessionLimits
from .sessions.session_controller import SessionController
from .state import State

CPU_CHUNK_SIZE = 256  # default --chunked-prefill-size, in tokens
CUDA_CHUNK_SIZE = 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class Extras:
    """Optional dependencies of a scheduler.

    Attributes:
        policies: the scheduling policies; None for those that the configuration selects.
        compiler: compiles grammars; if None, requests with a grammar are aborted.
        observer: notified when pages are added to or removed from the prefix cache.
        on_free: pool name → function that is called with all pages of the pool that become free.
        pools: pool name → constructor, for artificial pools in ``RunnerInfo.pools`` after the first one.
        records_phases: True to send ``PhaseChanges`` for traces.
    """

    policies: SchedulingPolicies | None = None
    compiler: GrammarCompiler | None = None
    observer: CacheObserver | None = None
    on_free: Mapping[str, Callable[[Sequence[int]], None]] = field(default_factory=dict)
    pools: Mapping[str, Callable[[PoolInfo], FurtherPool]] = field(default_factory=dict)
    records_phases: bool = False


def build_scheduler(config: SchedulerConfig, info: RunnerInfo, extras: Extras | None = None) -> Scheduler:
    """Build a scheduler over the pools that the runner reported."""
    extras = extras or Extras()
    if config.chunked_prefill_size is None:
        chunk_size = CUDA_CHUNK_SIZE if info.device == "cuda" else CPU_CHUNK_SIZE
        config = replace(config, chunked_prefill_size=chunk_size)
    policies = extras.policies or default_policies(
        config.retract_policy, risk=config.retraction_risk, conservativeness=config.schedule_conservativeness
    )
    more_pools = _build_more_pools(config, info, extras)
    pool, slots = _build_pool(config, info, extras, more_pools)
    state, memory = _build_state(config, info, (pool, more_pools), policies, extras)
    checker = InvariantChecker(state.lifecycle, pool, memory.more_pools, state.pools, info.num_rows)
    lengths = OutputLengths()
    sessions = SessionController(
        SessionLimits(config.max_sessions, config.session_timeout, config.max_sessions_per_key),
        slots,
        info,
        memory.never_fits,
    )
    state.lifecycle.end_listeners += [lengths, state.gates, sessions, state.waiting]
    retractor = Retractor(
        memory,
        state.lifecycle,
        state.ratio,
        policies,
        state.outbox,
        audit=_no_audit if config.memory_check == "off" else checker.on_idle,
    )
    admission = policies.admission(pool, state.ratio, lengths, memory.more_pools)
    state.lifecycle.on_leave = admission.left
    planner = _build_planner(config, state, memory, retractor, admission)
    dispatcher = Dispatcher(
        lifecycle=state.lifecycle,
        memory=memory,
        outbox=state.outbox,
        metrics=state.metrics,
        gates=state.gates,
        grammars=state.grammars,
        sessions=sessions,
        deadlines=Deadlines(state.lifecycle),
        config=config,
        control=Control(state.lifecycle, pool, state.outbox),
        info=info,
        waits=state.waits,
        inspector=Inspector(state.lifecycle, sessions, state.pools),
    )
    recovery = Recovery(state.lifecycle, state.pools, pool, memory.more_pools, state.steps_in_flight)
    return Scheduler(
        state=state,
        planner=planner,
        dispatcher=dispatcher,
        checker=checker,
        recovery=recovery,
        failures=Failures(state.lifecycle, state.outbox, state.metrics),
        item_results=ItemResults(state, info.context_length),
        memory_check=config.memory_check,
    )


def _build_pool(
    config: SchedulerConfig, info: RunnerInfo, extras: Extras, more_pools: Sequence[FurtherPool]
) -> tuple[Pool, SessionKvStore | None]:
    """Build the first pool, and the session slots if streaming sessions are enabled.

    A request can reuse computed tokens only if every pool has their K/V. The prefix cache is therefore off if an
    additional pool is of a kind that cannot cache prefixes. With a state pool, sessions use only the prefix cache.
    """
    allocator = PageAllocator(info.num_pages, info.page_size, on_free=extras.on_free.get(info.pools[0].name))
    windows = [pool for pool in more_pools if isinstance(pool, WindowPool)]
    parts = [pool for pool in more_pools if isinstance(pool, WindowPool | StatePool)]
    caches_all = len(parts) == len(more_pools)
    has_cache = not config.disable_radix_cache and caches_all
    cache: BasePrefixCache = RadixCache(allocator, extras.observer, parts) if has_cache else NoCache(parts)
    if not (config.enable_streaming_session and caches_all):
        return Pool(allocator, cache), None
    if len(windows) < len(parts):
        return Pool(allocator, cache), NoSessionKv()
    session_cache = SessionAwareCache(cache, allocator, windows)
    return Pool(allocator, session_cache), session_cache


def _build_more_pools(config: SchedulerConfig, info: RunnerInfo, extras: Extras) -> list[FurtherPool]:
    """Build every pool except the first."""
    assert config.chunked_prefill_size is not None
    pools: list[FurtherPool] = []
    for number, each in enumerate(info.pools[1:], 1):
        if each.name in extras.pools:
            pools.append(extras.pools[each.name](each))
            continue
        if each.name == MAMBA_POOL:
            pools.append(_build_state_pool(config, info, each, extras))
            continue
        chunks = config.chunked_prefill_size * info.max_in_flight
        pool = WindowPool(each, chunks, on_free=extras.on_free.get(each.name))
        if extras.observer is not None:
            pool.spans.store.observer = extras.observer.window(each, number)
        pools.append(pool)
    return pools


def _build_state_pool(config: SchedulerConfig, info: RunnerInfo, each: PoolInfo, extras: Extras) -> StatePool:
    caches_all = all(other.name not in extras.pools for other in info.pools)
    interval = 0 if config.disable_radix_cache or not caches_all else config.state_checkpoint_interval
    return StatePool(each, info.page_size, interval, on_free=extras.on_free.get(each.name))


def _build_state(
    config: SchedulerConfig,
    info: RunnerInfo,
    pools: tuple[Pool, Sequence[FurtherPool]],
    policies: SchedulingPolicies,
    extras: Extras,
) -> tuple[State, Memory]:
    outbox = Outbox()
    pool, more_pools = pools
    metrics = SchedulerMetrics(PhaseRecorder(outbox) if extras.records_phases else None)
    tier = _build_host_tier(info, metrics, more_pools)
    states = next((pool for pool in more_pools if isinstance(pool, StatePool)), None)
    memory = Memory(pool, tier, config.max_retractions, more_pools, states)
    audited: list[AuditedPool] = [*memory.pools] if tier is None else [*memory.pools, *tier.pools]
    grammars = Grammars(extras.compiler or NoCompiler(), metrics)
    order: Callable[[], PriorityClass] = ArrivalOrder
    if config.schedule_policy == "fair":
        order = partial(FairOrder, pool, info.num_rows)
    waiting = WaitingQueue(by_priority=_uses_priorities(config), order=order)
    state = State(
        lifecycle=Lifecycle(info.num_rows, waiting, memory.release_req, outbox, metrics),
        pool=pool,
        more_pools=memory.more_pools,
        kv_pools=memory.pools,
        pools=audited,
        host_tier=tier,
        ratio=policies.ratio(config.schedule_conservativeness),
        metrics=metrics,
        outbox=outbox,
        gates=Gates([grammars]),
        grammars=grammars,
    )
    return state, memory


def _build_host_tier(info: RunnerInfo, metrics: SchedulerMetrics, more_pools: Sequence[FurtherPool]) -> HostTier | None:
    """Build the host tier. Returns None if it is off, or if it cannot keep the K/V of every pool."""
    windows = [pool for pool in more_pools if isinstance(pool, WindowPool)]
    if not info.num_host_pages or len(windows) < len(more_pools) or len(info.more_host_pages) < len(more_pools):
        return None
    return HostTier(info, metrics.count, windows)


def _build_planner(
    config: SchedulerConfig, state: State, memory: Memory, retractor: Retractor, admission: AdmissionRule
) -> Planner:
    items = PlanItems(memory, state.grammars, state.metrics)
    assert config.chunked_prefill_size is not None
    return Planner(
        lifecycle=state.lifecycle,
        retractor=retractor,
        preemption=Preemption(
            state.lifecycle, retractor, admission, state.gates, state.metrics, enabled=_uses_priorities(config)
        ),
        forced=ForcedRetraction(state.lifecycle, retractor, config.test_retract_interval),
        admitter=Admitter(
            memory=memory,
            lifecycle=state.lifecycle,
            retractor=retractor,
            admission=admission,
            items=items,
            gates=state.gates,
            order=ADMISSION_ORDERS[config.schedule_policy],
            waits=state.waits,
        ),
        look_ahead=LookAhead(state.lifecycle, memory, admission, state.metrics),
        items=items,
        ratio=state.ratio,
        chunked_prefill_size=config.chunked_prefill_size,
    )


def _uses_priorities(config: SchedulerConfig) -> bool:
    return config.schedule_policy in ("priority", "fair")


def _no_audit() -> None:
    """Do nothing. Used as the audit with ``--memory-check off``."""
