"""A simulated runner that yields several tokens per decode item, as a runner with speculative decoding does."""

from __future__ import annotations

from msgspec.structs import replace

from ebbtide.messages import TokenLogprob
from ebbtide.model_runner.sim.sim import SimRunner, SimShape
from ebbtide.plan import PlanItem, StepPlan, StepResult


class MultiTokenRunner(SimRunner):
    """Runs as many single steps for each decode item as the item may sample, or fewer by the position of the item."""

    def __init__(self, shape: SimShape, max_samples: int) -> None:
        super().__init__(shape)
        self.info = replace(self.info, max_samples=max_samples)
        self.num_extra = 0  # tokens beyond the first of their items

    def _execute(self, plan: StepPlan) -> StepResult:
        result = super()._execute(plan)
        tokens = result.tokens
        logprobs = result.logprobs or [None] * len(tokens)
        for number, item in enumerate(item for item in plan.items if item.num_samples):
            assert item.num_samples <= self.info.max_samples
            for place in range(item.num_samples - 1):
                if (item.start * 2654435761 >> 7) % 4 < place:
                    break  # the rest is "rejected"
                single = PlanItem(item.row, item.end + place, None)
                next_tokens, next_logprobs = self._single(single)
                tokens[number] += next_tokens
                if next_logprobs is not None:
                    logprobs[number] = (logprobs[number] or []) + next_logprobs
                self.num_extra += 1
        return replace(result, logprobs=logprobs if any(logprobs) else None)

    def _single(self, item: PlanItem) -> tuple[list[int], list[TokenLogprob] | None]:
        """One more step of one row: the pages for it must be in the page table already."""
        result = super()._execute(StepPlan(0, [item]))
        return result.tokens[0], None if result.logprobs is None else result.logprobs[0]
