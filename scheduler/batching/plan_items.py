"""Plan items: the tokens and pages of one row in the next step."""

from __future__ import annotations

from ebbtide.errors import InvariantViolation
from ebbtide.plan import PlanItem, RowInit

from ..grammar.grammar_state import Grammars
from ..metrics import SchedulerMetrics
from ..prompt_logprobs import prompt_logprobs_for
from ..request import Request
from ..retraction import Memory


class PlanItems:
    """Makes the items of a step and allocates the pages that they write to."""

    def __init__(self, memory: Memory, grammars: Grammars, metrics: SchedulerMetrics) -> None:
        self._memory = memory
        self._pool = memory.pool
        self._grammars = grammars
        self._metrics = metrics

    def decode(self, req: Request) -> PlanItem:
        """One token of a decode row. A page must be free if the row is at a page end."""
        if req.at_page_end:
            self._pool.allocate(req, 1)
        for pool in self._memory.more_pools:
            if pool.allocate_up_to(req, req.computed + 1) <= req.computed:
                raise InvariantViolation(f"{req.tag} finds no page for token {req.computed} in pool {pool.name}")
        tokens = None if req.samples_in_flight else req.known[-1:]
        return self._item(req, tokens, 1, samples=True)

    def prefill(self, req: Request, budget: int) -> PlanItem | None:
        """The next chunk, at most ``budget`` tokens. Returns None if there is no page for even one token."""
        end = min(len(req.known), req.computed + budget)
        end = self._memory.allocate_up_to(req, end)
        if end <= req.computed:
            return None
        again = min(end, req.history.high_water) - req.computed
        if again > 0:
            req.history.recomputed_tokens += again
            self._metrics.count("num_recomputed_tokens_total", again)
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
        mask = self._grammars.mask(req) if samples and req.grammar else b""
        wanted = None if req.sampling.prompt_logprobs is None else prompt_logprobs_for(req, count)
        item = PlanItem(req.row, req.computed, tokens, pages, page_index, samples, init, mask, wanted)
        req.computed += count
        req.steps_in_flight += 1
        req.samples_in_flight += samples
        return item


def _needs_history(req: Request) -> bool:
    sampling = req.sampling
    return bool(sampling.presence_penalty or sampling.frequency_penalty or sampling.repetition_penalty != 1.0)
