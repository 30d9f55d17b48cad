"""A runner that computes nothing.

Its tokens are artificial: it returns the end token when a request has reached the output length of its trace.
"""

from __future__ import annotations

from collections import deque

from ...messages import RunnerInfo
from ...plan import PlanItem, StepPlan, StepResult
from .trace import TraceRequest

EOS = 0  # the end token; all other tokens are positive


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
