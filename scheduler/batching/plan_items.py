"""Plan items: the tokens and pages of one row in the next step."""

from __future__ import annotations

from ebbtide.errors import InvariantViolation
from ebbtide.plan import PageWrite, PlanItem, RowInit, StateCopies

from ..grammar.grammar_state import Grammars
from ..metrics import SchedulerMetrics
from ..prompt_logprobs import prompt_logprobs_for
from ..request import Request
from ..request_memory import Memory


class PlanItems:
    """Creates the items of a step and allocates the pages that they write to."""

    def __init__(self, memory: Memory, grammars: Grammars, metrics: SchedulerMetrics) -> None:
        self._memory = memory
        self._more_pools = memory.more_pools
        self._pool = memory.pool
        self._states = memory.states
        self._grammars = grammars
        self._metrics = metrics
        self._failures: list[tuple[Request, Exception]] = []

    def take_failures(self) -> list[tuple[Request, Exception]]:
        """Return the requests for which creating an item has failed since the last call, each with the exception."""
        failures, self._failures = self._failures, []
        return failures

    def decode(self, req: Request) -> PlanItem:
        """Create the item for the next token of a decode row.

        The caller must have checked with ``Retractor.check_decode_mem`` that the token fits.
        """
        num_samples = req.max_samples
        if num_samples > 1:
            num_samples = req.num_samples
        if req.computed + num_samples > len(req.pages) * req.page_size:
            num_samples = self._make_room(req, num_samples)
        if self._more_pools and req.computed + num_samples > req.sent_elsewhere:
            num_samples = self._make_room_elsewhere(req, num_samples)
        tokens = None if req.samples_in_flight else req.known[-1:]
        return self._item(req, tokens, 1, num_samples)

    def prefill(self, req: Request, budget: int) -> PlanItem | None:
        """Create the item for the next prefill chunk, at most ``budget`` tokens.

        Returns None if no page is available for even one token.
        """
        if req.computed >= len(req.known):
            raise InvariantViolation(f"{req.tag} has K/V for {req.computed} tokens but only {len(req.known)} tokens")
        end = min(len(req.known), req.computed + budget)
        if self._states is not None:
            end = self._states.chunk_end(req, end)
        end = self._memory.allocate_up_to(req, end)
        if end <= req.computed:
            return None
        again = min(end, req.history.high_water) - req.computed
        if again > 0:
            req.history.recomputed_tokens += again
            self._metrics.count("num_recomputed_tokens_total", again)
        return self._item(req, req.known[req.computed : end], end - req.computed, int(end == len(req.known)))

    def _make_room(self, req: Request, num_samples: int) -> int:
        """Allocate the pages that a decode row lacks. Return the number of samples for which the row then has pages.

        Raises InvariantViolation if no page is available for its next token.
        """
        num_held = (len(req.pages) + self._pool.available_pages) * req.page_size
        num_samples = max(min(num_samples, num_held - req.computed), 1)
        self._pool.allocate(req, self._pool.missing_pages(req, req.computed + num_samples))
        return num_samples

    def _make_room_elsewhere(self, req: Request, num_samples: int) -> int:
        """Like ``_make_room``, for all pools except the first."""
        for pool in self._more_pools:
            num_samples = min(num_samples, pool.allocate_up_to(req, req.computed + num_samples) - req.computed)
            if num_samples <= 0:
                raise InvariantViolation(f"{req.tag} has no page for token {req.computed} in pool {pool.name}")
        return num_samples

    def _writes_elsewhere(self, req: Request) -> tuple[PageWrite, ...]:
        """Return the pages that have not been sent to the runner yet, for all pools except the first."""
        unsent = [(number, *pool.take_unsent(req)) for number, pool in enumerate(self._more_pools, 1)]
        held = [(pool.held[req.rid], pool.page_size) for pool in self._more_pools]
        req.sent_elsewhere = min((pages.first + len(pages.pages)) * size for pages, size in held)
        return tuple(PageWrite(number, index, pages) for number, index, pages in unsent if pages)

    def _state_copies(self, req: Request, end: int, init: RowInit | None, num_samples: int) -> StateCopies | None:
        """Return the copies of the recurrent state for the item whose last token is the one before ``end``."""
        states = self._states
        if states is None or (init is None and end % req.page_size):  # copies are made at page boundaries
            return None
        load = None if init is None else states.source(req)
        save = states.save(req, end) if num_samples <= 1 else None
        return None if load is None and save is None else StateCopies(load, save)

    def _item(self, req: Request, tokens: list[int] | None, count: int, num_samples: int) -> PlanItem:
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
        if not req.sampling.max_tokens:
            num_samples = 0
        mask, wanted = b"", None
        try:
            if num_samples and req.grammar:
                mask = self._grammars.mask(req)
            if req.sampling.prompt_logprobs is not None:
                wanted = prompt_logprobs_for(req, count)
        except Exception as error:
            self._failures.append((req, error))
        has_unsent = self._more_pools and req.computed + max(count, num_samples) > req.sent_elsewhere
        more = self._writes_elsewhere(req) if has_unsent else ()
        embeds = req.sampling.embedding and req.computed + count == req.prompt_len
        states = self._state_copies(req, req.computed + count, init, num_samples)
        item = PlanItem(
            req.row, req.computed, tokens, pages, page_index, num_samples, init, mask, wanted, more, embeds, states
        )
        req.computed += count
        req.steps_in_flight += 1
        req.samples_in_flight += num_samples > 0
        return item


def _needs_history(req: Request) -> bool:
    sampling = req.sampling
    return bool(sampling.presence_penalty or sampling.frequency_penalty or sampling.repetition_penalty != 1.0)
