"""A simulated device: the duration of a step, and a runner that computes nothing.

The runner's tokens are artificial: it returns the end token when a request has reached the output length of its trace.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from ...messages import RunnerInfo
from ...plan import PlanItem, StepPlan, StepResult
from .trace import TraceRequest

EOS = 0  # the end token; all other tokens are positive


@dataclass(frozen=True, slots=True)
class CostModel:
    """The duration of a step: a base time, plus a time per decoding row, per prefilled token and per token of context.

    A token of context is one that attention reads. The defaults are round numbers for a model with eight billion
    parameters on one data-center GPU: 64 rows with 1,500 tokens of context take 19 ms. They are not measured; replace
    them with your own measurements.
    """

    base_s: float = 0.010
    decode_row_s: float = 50e-6
    prefill_token_s: float = 50e-6
    context_token_s: float = 60e-9

    def step_s(self, items: list[PlanItem]) -> float:
        """Return the duration in seconds of a step with these items."""
        rows = prefilled = context = 0
        for item in items:
            count = 1 if item.tokens is None else len(item.tokens)
            context += item.start + count
            if count == 1 and item.num_samples:
                rows += 1
            else:
                prefilled += count
        return self._seconds(rows, prefilled, context)

    def decode_step_s(self, num_rows: int, context: float) -> float:
        """Return the duration in seconds of a step in which ``num_rows`` rows with ``context`` tokens each decode."""
        return self._seconds(num_rows, 0, num_rows * context)

    def alone_s(self, request: TraceRequest, chunk: int) -> float:
        """Return the duration in seconds of a request that runs alone with an empty prefix cache."""
        prompt, outputs = request.prompt_len, request.num_outputs
        chunks = -(-prompt // chunk)
        prefill = chunks * self.base_s + prompt * self.prefill_token_s
        prefill += (chunks + 1) * prompt / 2 * self.context_token_s
        return prefill + (outputs - 1) * self.decode_step_s(1, prompt + outputs / 2)

    def _seconds(self, rows: int, prefilled: int, context: float) -> float:
        return (
            self.base_s + rows * self.decode_row_s + prefilled * self.prefill_token_s + context * self.context_token_s
        )


class CostRunner:
    """A ``Runner`` that computes nothing. It finds a request in ``requests`` by its ``SamplingParams.seed``."""

    def __init__(self, requests: list[TraceRequest], info: RunnerInfo) -> None:
        self.info = info
        self._requests = requests
        self._rows: dict[int, tuple[int, int]] = {}  # row → numbers of prompt tokens, of all tokens
        self._results: deque[StepResult] = deque()

    def submit(self, plan: StepPlan) -> None:
        """See ``Runner``."""
        tokens = []
        for item in plan.items:
            if item.init is not None:
                request = self._requests[item.init.sampling.seed]
                self._rows[item.row] = (item.init.prompt_len, item.init.prompt_len + request.output_len)
            if item.num_samples:
                tokens.append([self._sample(item)])
        self._results.append(StepResult(plan.number, tokens))

    def collect(self) -> StepResult:
        """See ``Runner``."""
        return self._results.popleft()

    def _sample(self, item: PlanItem) -> int:
        """Return the token that follows the item: ``EOS`` as the last token, else its 1-based index in the output."""
        prompt_len, end = self._rows[item.row]
        known = item.start + (1 if item.tokens is None else len(item.tokens)) + 1
        return EOS if known >= end else known - prompt_len
