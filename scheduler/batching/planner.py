"""What the next step computes: decode rows first, then prefill chunks, then new admissions, within pages and budget."""

from __future__ import annotations

import logging

from ebbtide.plan import PlanItem, RowInit

from ..endings import Endings
from ..memory.prefix_cache import MatchResult
from ..pressure import Pressure, Why
from ..prompt_logprobs import prompt_logprobs_for
from ..relief import Cause, Relief
from ..request import Phase, Request
from ..state import State
from .admission import Verdict
from .policies import ADMISSION_ORDERS
from .scheduling_policies import AdmissionRule

log = logging.getLogger(__name__)


class Planner:
    """Fills one step after another. ``now`` is the step's time in seconds."""

    def __init__(self, state: State, pressure: Pressure, endings: Endings, admission: AdmissionRule) -> None:
        self._state = state
        self._pressure = pressure
        self._endings = endings
        self._admission = admission
        self._relief = Relief(state, pressure, endings, admission)
        self._order = ADMISSION_ORDERS[state.limits.schedule_policy]

    def plan(self, now: float, *, results_due: bool) -> list[PlanItem]:
        """The items of the next step; empty when nothing can run.

        results_due: results are on their way. They are waited for before anybody gives way, since they may free memory
        and a retraction should know what they bring.
        """
        state = self._state
        cause = self._relief.cause(results_due=results_due)
        if cause is not None:
            if results_due:
                return []
            self._relief.make_room(cause, now)
        items = self._decode_items()
        chunks, budget = self._prefill_items(state.limits.chunked_prefill_size, now)
        items += chunks
        may_admit = cause in (None, Cause.PRIORITY) or not state.running
        if may_admit and budget > 0 and state.waiting and state.free_rows:
            items += self._admit(budget, now)
        if items:
            self._relief.stepped()
        return items

    def _decode_items(self) -> list[PlanItem]:
        items = [
            self._decode_item(req)
            for req in self._state.running
            if req.computed == len(req.known) + req.samples_in_flight - 1 and not req.awaits_result
        ]
        if items:
            self._state.ratio.decay()
        return items

    def _decode_item(self, req: Request) -> PlanItem:
        if req.at_page_end:
            self._state.pool.allocate(req, 1)
        tokens = None if req.samples_in_flight else req.known[-1:]
        return self._item(req, tokens, 1, samples=True)

    def _prefill_items(self, budget: int, now: float) -> tuple[list[PlanItem], int]:
        """Chunks of the prompts that run already, and the budget that they leave."""
        items: list[PlanItem] = []
        behind = [req for req in self._state.running if req.computed < len(req.known) + req.samples_in_flight - 1]
        for req in behind:
            if budget <= 0:
                break
            item = self._prefill_item(req, budget)
            if item is not None:
                items.append(item)
                budget -= len(item.tokens or ())
            elif not req.steps_in_flight:
                # Decode rows took the last pages. It gives back what it holds rather than sit on it.
                self._pressure.release_req(req, Why.RETRACT)
                self._relief.went_back(req, now)
        if len(behind) > len(items):
            self._state.filter_batch()
        return items, budget

    def _prefill_item(self, req: Request, budget: int) -> PlanItem | None:
        """The next chunk; None when there is no page for even one token."""
        end = min(len(req.known), req.computed + budget)
        end = min(end, self._state.pool.allocate_up_to(req, end))
        if end == req.computed:
            return None
        again = min(end, req.history.high_water) - req.computed
        if again > 0:
            req.history.recomputed_tokens += again
            self._state.metrics.count("num_recomputed_tokens_total", again)
        return self._item(req, req.known[req.computed : end], end - req.computed, samples=end == len(req.known))

    def _item(self, req: Request, tokens: list[int] | None, count: int, *, samples: bool) -> PlanItem:
        assert req.row is not None
        pages: list[int] = []
        page_index = req.sent_pages
        if page_index < len(req.pages):
            pages = req.pages[page_index:]
            req.sent_pages = len(req.pages)
        init = None
        if not req.row_ready:
            init = RowInit(req.sampling, req.prompt_len, req.known[:] if _needs_history(req) else [])
            req.row_ready = True
        samples = samples and req.sampling.max_tokens > 0
        logprob_spec = prompt_logprobs_for(req, count)
        mask = self._state.grammars.mask(req) if samples else b""
        item = PlanItem(req.row, req.computed, tokens, pages, page_index, samples, init, mask, logprob_spec)
        req.computed += count
        req.steps_in_flight += 1
        req.samples_in_flight += samples
        return item

    def _admit(self, budget: int, now: float) -> list[PlanItem]:
        """Start waiting requests while budget, rows and memory last; returns their first chunks."""
        items: list[PlanItem] = []
        judged: list[tuple[Request, Verdict]] = []
        self._admission.begin(self._state.running)
        for req in self._order(iter(self._state.waiting), self._match_len):
            if budget <= 0 or not self._state.free_rows or req.steps_in_flight:
                break
            if not self._state.grammars.ready(req):
                continue
            judgement = self._admission.judge(req)
            judged.append((req, judgement.verdict))
            if judgement.verdict is Verdict.ADMIT:
                item = self._start(req, judgement.match, budget, now)
                if item is None:
                    break
                items.append(item)
                budget -= len(item.tokens or ())
            elif judgement.verdict is Verdict.WAIT:
                break
        self._leave_queue(judged, now)
        return items

    def _leave_queue(self, judged: list[tuple[Request, Verdict]], now: float) -> None:
        """Carry out the verdicts; apart, because the queue must not change while it is walked."""
        state = self._state
        for req, verdict in judged:
            if verdict is Verdict.HOPELESS:
                self._endings.exhausted(req)
            elif verdict is Verdict.ADMIT:
                state.waiting.remove(req, state.queue_class(req))
                if req.phase is Phase.WAITING:
                    self._relief.went_back(req, now)

    def _start(self, req: Request, match: MatchResult, budget: int, now: float) -> PlanItem | None:
        """Give an admitted request its row, its cached prefix and its first chunk.

        None when there is no page for it after all: the cache promised more than it could free.
        """
        state = self._state
        state.pool.tree_cache.attach(req, match)
        req.row = state.free_rows.pop()
        req.move_to(Phase.RUNNING)
        state.running.append(req)
        req.history.outputs_at_start = req.num_outputs
        req.computed = req.num_confirmed = len(req.pages) * state.pool.page_size
        state.metrics.admitted(req, req.computed, now)
        self._restore(req)
        if req.is_retracted:
            req.is_retracted = False
            state.num_retracted -= 1
        item = self._prefill_item(req, budget)
        if item is None:
            log.error("request %s was admitted without room for one token", req.rid, extra={"rid": req.rid})
            self._pressure.release_req(req, Why.RETRACT)
            state.running.remove(req)
            return None
        self._admission.admitted(req)
        return item

    def _restore(self, req: Request) -> None:
        """Take K/V back from the host tier, if it has what the cache lacks and the pages are there."""
        tier = self._state.host_tier
        if tier is None:
            return
        num_tokens = tier.restorable(req, len(req.pages))
        if num_tokens > req.computed and self._state.pool.allocate_up_to(req, num_tokens) >= num_tokens:
            tier.restore(req)
            req.computed = req.num_confirmed = num_tokens
        tier.discard(req)

    def _match_len(self, req: Request) -> int:
        return len(self._state.pool.tree_cache.match_prefix(req).pages)


def _needs_history(req: Request) -> bool:
    sampling = req.sampling
    return bool(sampling.presence_penalty or sampling.frequency_penalty or sampling.repetition_penalty != 1.0)
