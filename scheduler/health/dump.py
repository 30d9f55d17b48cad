"""Snapshots of the scheduler for the watchdog's dump: numbers and request ids, no prompt text.

The loop takes a snapshot, and any thread can render it as text. The module uses no clock and no thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from ebbtide.messages import PressureEvent
from ebbtide.plan import StepPlan

from ..core import Scheduler
from ..memory.accounting import PoolAccounting
from ..request import Request
from ..state import State
from .progress import LoopStatus

MAX_REQUESTS = 50  # maximum number of running requests shown; the same limit holds for waiting requests
MAX_BYTES = 64 << 10
LAST_MOVES = 12  # maximum number of recent page moves shown per pool
MAX_REASONS = 5  # maximum number of waiting requests shown with the reason why they are waiting


@dataclass(frozen=True, slots=True)
class SchedulerSnapshot:
    """The state of a scheduler at one moment."""

    plan_number: int = -1  # number of the last plan submitted to the runner
    plan: tuple[tuple[int, int, int], ...] = ()  # (row, start, number of tokens) of each item in that plan
    num_in_flight: int = 0
    num_running: int = 0
    num_waiting: int = 0
    num_requests: int = 0
    num_sessions: int = 0
    num_turns: int = 0
    running: tuple[str, ...] = ()  # one line per running request; lengths in tokens
    waiting: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()  # why each of the first requests in the queue is waiting
    accounting: tuple[tuple[str, PoolAccounting], ...] = ()  # by pool name
    moves: tuple[str, ...] = ()
    free_rows: int = 0
    ratio: float = 0.0


def take_snapshot(scheduler: Scheduler, plan: StepPlan | None) -> SchedulerSnapshot:
    """Take a snapshot of ``scheduler`` and its last plan. The cost depends neither on the load nor on the pool size."""
    state = scheduler.state
    items = () if plan is None else plan.items[:MAX_REQUESTS]
    return SchedulerSnapshot(
        plan_number=-1 if plan is None else plan.number,
        plan=tuple((item.row, item.start, 1 if item.tokens is None else len(item.tokens)) for item in items),
        num_in_flight=scheduler.num_in_flight,
        num_running=len(state.running),
        num_waiting=len(state.waiting),
        num_requests=len(state.requests),
        num_sessions=scheduler.num_sessions,
        num_turns=scheduler.num_turns,
        running=tuple(_request_line(req) for req in state.running[:MAX_REQUESTS]),
        waiting=tuple(_request_line(req) for req in islice(state.waiting, MAX_REQUESTS)),
        reasons=waiting_reasons(state),
        accounting=tuple((pool.name, pool.accounting()) for pool in state.pools),
        moves=tuple(f"{pool.name}: {move}" for pool in state.pools for move in pool.ledger.recent(LAST_MOVES)),
        free_rows=len(state.free_rows),
        ratio=state.ratio.value,
    )


def waiting_reasons(state: State) -> tuple[str, ...]:
    """Returns "rid: reason" for each of the first waiting requests."""
    return tuple(f"{req.rid}: {_why_waiting(state, req)}" for req in islice(state.waiting, MAX_REASONS))


def render_dump(
    title: str,
    status: LoopStatus,
    snapshot: SchedulerSnapshot,
    events: Sequence[PressureEvent],
    stacks: Sequence[str],
) -> str:
    """Render the snapshot as text of at most ``MAX_BYTES``.

    The accounting comes first: if it balances, the cause of the stall is in the model or the device.
    """
    lines = [
        f"==== {title} ====",
        f"phase {status.phase}, {status.activity.value}, forward_ct {status.forward_ct}, progress {status.progress}",
        *_accounting_lines(snapshot),
        f"last {len(snapshot.moves)} page moves (oldest first):",
        *(f"  {move}" for move in snapshot.moves),
        f"free rows {snapshot.free_rows}, new_token_ratio {snapshot.ratio:.3f}",
        *_plan_lines(snapshot),
        *_request_lines("batch", snapshot.running, snapshot.num_running),
        *_request_lines("queue", snapshot.waiting, snapshot.num_waiting),
        *(f"  waits: {reason}" for reason in snapshot.reasons),
        f"{snapshot.num_requests} open requests",
        f"{snapshot.num_sessions} open sessions with {snapshot.num_turns} open turns",
        f"last {len(events)} pressure events (oldest first):",
        *(f"  {_event_line(event)}" for event in events),
        "stacks:",
        *stacks,
    ]
    return _bounded("\n".join(_plain(line) for line in lines))


def _bounded(text: str) -> str:
    end = "\n… truncated\n==== end of dump ====\n"
    whole = text + "\n==== end of dump ====\n"
    if len(whole.encode()) <= MAX_BYTES:
        return whole
    return text.encode()[: MAX_BYTES - len(end.encode())].decode(errors="ignore") + end


def _plain(line: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in line)


def _why_waiting(state: State, req: Request) -> str:
    """Derive the reason from counters only, because another admission check would change the state of the next one."""
    needs = [(pool, pool.pages_for(len(req.known))) for pool in state.kv_pools]
    for pool, count in needs:
        if count > pool.capacity:
            return f"needs {count} pages, but the whole pool has {pool.capacity}"
    if reason := state.gates.why(req):
        return reason
    if not state.free_rows:
        return f"no free row, {len(state.running)} running"
    for pool, count in needs:
        if count > pool.usable_pages:
            return f"needs {count} pages and {pool.usable_pages} are usable"
    others = f", and {len(state.running)} running requests are expected to need more"
    usable = " and ".join(f"{count} of {pool.usable_pages}" for pool, count in needs)
    return f"needs {usable} usable pages{others if state.running else ' but is not admitted'}"


def _accounting_lines(snapshot: SchedulerSnapshot) -> list[str]:
    lines = []
    for name, terms in snapshot.accounting:
        verdict = "balanced" if terms.accounted == terms.total else f"NOT BALANCED: {terms.accounted} accounted for"
        lines.append(
            f"accounting of pool {name} (pages): available {terms.available} + evictable {terms.evictable} + protected "
            f"{terms.protected} + session_held {terms.session_held} + uncached {terms.uncached} == total "
            f"{terms.total}: {verdict}"
        )
    return lines


def _plan_lines(snapshot: SchedulerSnapshot) -> list[str]:
    if snapshot.plan_number < 0:
        return ["no step has been submitted to the runner yet"]
    items = " ".join(f"{row}:{start}+{count}" for row, start, count in snapshot.plan)
    return [f"step {snapshot.plan_number} (row:start+tokens): {items}", f"steps in flight {snapshot.num_in_flight}"]


def _request_lines(what: str, requests: Sequence[str], total: int) -> list[str]:
    return [f"{what} of {total}, the first {len(requests)}:", *(f"  {line}" for line in requests)]


def _request_line(req: Request) -> str:
    return (
        f"{req.rid} row {req.row} prompt {req.prompt_len} outputs {req.num_outputs}/{req.sampling.max_tokens} computed "
        f"{req.computed} confirmed {req.num_confirmed} pages {len(req.pages)} retractions "
        f"{req.history.retraction_count}{' protected' if req.protected else ''}"
    )


def _event_line(event: PressureEvent) -> str:
    victims = ", ".join(f"{victim.rid} ({victim.num_output_tokens} outputs)" for victim in event.victims[:8])
    more = f" and {len(event.victims) - 8} more" if len(event.victims) > 8 else ""
    aborted = f", aborted {event.aborted}" if event.aborted else ""
    return (
        f"step {event.step} {event.cause}: {victims}{more}{aborted}; pool {event.pool}: available "
        f"{event.available_before} -> {event.available_after} tokens, "
        f"ratio {event.ratio_before:.3f} -> {event.ratio_after:.3f}"
    )
