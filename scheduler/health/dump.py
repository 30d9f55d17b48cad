"""The watchdog's picture of a scheduler: numbers and ids, never a prompt; taken by the loop, written by anybody.

Knows how to read a scheduler's state and how to put the picture into words; no clock, no thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from ebbtide.messages import PressureEvent
from ebbtide.paging import pages_for
from ebbtide.plan import StepPlan

from ..core import Scheduler
from ..memory.accounting import PoolAccounting
from ..request import Request
from ..state import State
from .progress import Pulse

MAX_REQUESTS = 50  # of the batch and of the queue each
MAX_BYTES = 64 << 10
MOVES = 12  # of pages, the last ones
HEADS = 5  # waiting requests whose reason is said


@dataclass(frozen=True, slots=True)
class RequestLine:
    """One request in numbers. Lengths in tokens."""

    rid: str
    row: int | None
    prompt_len: int
    num_outputs: int
    max_tokens: int
    computed: int
    num_confirmed: int
    num_pages: int
    num_retractions: int
    protected: bool


@dataclass(frozen=True, slots=True)
class Picture:
    """A scheduler at one moment. plan: (row, start, tokens) of the last step handed to the runner."""

    plan_number: int = -1
    plan: tuple[tuple[int, int, int], ...] = ()
    num_in_flight: int = 0
    num_running: int = 0
    num_waiting: int = 0
    num_requests: int = 0
    num_sessions: int = 0
    num_turns: int = 0
    running: tuple[RequestLine, ...] = ()
    waiting: tuple[RequestLine, ...] = ()
    reasons: tuple[str, ...] = ()
    books: tuple[tuple[str, PoolAccounting], ...] = ()
    moves: tuple[str, ...] = ()
    free_rows: int = 0
    ratio: float = 0.0


def picture(scheduler: Scheduler, plan: StepPlan | None) -> Picture:
    """What to know of ``scheduler`` if this is the last one hears of it. Costs the same for every load and pool."""
    state = scheduler.state
    items = () if plan is None else plan.items[:MAX_REQUESTS]
    return Picture(
        plan_number=-1 if plan is None else plan.number,
        plan=tuple((item.row, item.start, 1 if item.tokens is None else len(item.tokens)) for item in items),
        num_in_flight=scheduler.num_in_flight,
        num_running=len(state.running),
        num_waiting=len(state.waiting),
        num_requests=len(state.requests),
        num_sessions=scheduler.num_sessions,
        num_turns=scheduler.num_turns,
        running=tuple(_line(req) for req in state.running[:MAX_REQUESTS]),
        waiting=tuple(_line(req) for req in islice(state.waiting, MAX_REQUESTS)),
        reasons=waiting_reasons(state),
        books=tuple((pool.name, pool.accounting()) for pool in state.pools),
        moves=tuple(state.pool.ledger.recent(MOVES)),
        free_rows=len(state.free_rows),
        ratio=state.ratio.value,
    )


def waiting_reasons(state: State) -> tuple[str, ...]:
    """Why each of the first waiting requests does not run, one sentence part each."""
    return tuple(f"{req.rid}: {_why_waiting(state, req)}" for req in islice(state.waiting, HEADS))


def render(title: str, pulse: Pulse, picture: Picture, events: Sequence[PressureEvent], stacks: Sequence[str]) -> str:
    """The dump as text of at most ``MAX_BYTES``: books first, for if they balance the model is to be suspected."""
    lines = [
        f"==== {title} ====",
        f"phase {pulse.phase}, {pulse.activity.value}, forward_ct {pulse.forward_ct}, progress {pulse.progress}",
        *_books_lines(picture),
        f"last {len(picture.moves)} moves of pages (oldest first):",
        *(f"  {move}" for move in picture.moves),
        f"rows free {picture.free_rows}, new_token_ratio {picture.ratio:.3f}",
        *_plan_lines(picture),
        *_request_lines("batch", picture.running, picture.num_running),
        *_request_lines("queue", picture.waiting, picture.num_waiting),
        *(f"  waits: {reason}" for reason in picture.reasons),
        f"{picture.num_requests} requests have not ended",
        f"{picture.num_sessions} sessions are open, {picture.num_turns} of their turns have not ended",
        f"last {len(events)} pressure events (oldest first):",
        *(f"  {_event_line(event)}" for event in events),
        "stacks:",
        *stacks,
    ]
    return _bounded("\n".join(_plain(line) for line in lines))


def _bounded(text: str) -> str:
    end = "\n… cut\n==== end of dump ====\n"
    whole = text + "\n==== end of dump ====\n"
    if len(whole.encode()) <= MAX_BYTES:
        return whole
    return text.encode()[: MAX_BYTES - len(end.encode())].decode(errors="ignore") + end


def _plain(line: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in line)


def _line(req: Request) -> RequestLine:
    return RequestLine(
        rid=req.rid,
        row=req.row,
        prompt_len=req.prompt_len,
        num_outputs=req.num_outputs,
        max_tokens=req.sampling.max_tokens,
        computed=req.computed,
        num_confirmed=req.num_confirmed,
        num_pages=len(req.pages),
        num_retractions=req.history.retraction_count,
        protected=req.protected,
    )


def _why_waiting(state: State, req: Request) -> str:
    """From numbers only: judging anew would change what the next step's judgement sees."""
    needs, usable = pages_for(len(req.known), state.pool.page_size), state.pool.usable_pages
    if needs > state.pool.capacity:
        return f"needs {needs} pages and the whole pool has {state.pool.capacity}"
    if not state.grammars.ready(req):
        return "its grammar is being compiled"
    if req.steps_in_flight:
        return "a result from before its retraction is still on its way"
    if not state.free_rows:
        return f"no free row, {len(state.running)} run"
    if needs > usable:
        return f"needs {needs} pages and {usable} are usable"
    others = f", of which {len(state.running)} running requests will need more"
    return f"needs {needs} of {usable} usable pages{others if state.running else ' and is not admitted all the same'}"


def _books_lines(picture: Picture) -> list[str]:
    lines = []
    for name, terms in picture.books:
        verdict = "balanced" if terms.accounted == terms.total else f"NOT BALANCED: {terms.accounted} accounted for"
        lines.append(
            f"books of pool {name} (pages): available {terms.available} + evictable {terms.evictable} + protected "
            f"{terms.protected} + session_held {terms.session_held} + uncached {terms.uncached} == total "
            f"{terms.total}: {verdict}"
        )
    return lines


def _plan_lines(picture: Picture) -> list[str]:
    if picture.plan_number < 0:
        return ["no step was handed to the runner yet"]
    items = " ".join(f"{row}:{start}+{count}" for row, start, count in picture.plan)
    return [f"step {picture.plan_number} (row:start+tokens): {items}", f"steps in flight {picture.num_in_flight}"]


def _request_lines(what: str, lines: Sequence[RequestLine], total: int) -> list[str]:
    return [f"{what} of {total}, the first {len(lines)}:", *(f"  {_request_line(line)}" for line in lines)]


def _request_line(line: RequestLine) -> str:
    return (
        f"{line.rid} row {line.row} prompt {line.prompt_len} outputs {line.num_outputs}/{line.max_tokens} computed "
        f"{line.computed} confirmed {line.num_confirmed} pages {line.num_pages} retractions {line.num_retractions}"
        f"{' protected' if line.protected else ''}"
    )


def _event_line(event: PressureEvent) -> str:
    victims = ", ".join(f"{victim.rid} ({victim.num_output_tokens} outputs)" for victim in event.victims[:8])
    more = f" and {len(event.victims) - 8} more" if len(event.victims) > 8 else ""
    aborted = f", gave up {event.aborted}" if event.aborted else ""
    return (
        f"step {event.step} {event.cause}: {victims}{more}{aborted}; available {event.available_before} -> "
        f"{event.available_after} tokens, ratio {event.ratio_before:.3f} -> {event.ratio_after:.3f}"
    )
