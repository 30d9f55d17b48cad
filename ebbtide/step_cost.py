"""The duration of a step as a formula, for ``ebbtide simulate`` and the simulated model."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from .plan import PlanItem


@dataclass(frozen=True, slots=True)
class StepCost:
    """The duration of a step: a base time, plus a time per decoding row, per prefilled token and per token of context.

    A token of context is one that attention reads. The defaults are round numbers for a model with eight billion
    parameters on one data-center GPU: 64 rows with 1,500 tokens of context take 19 ms. They are not measured; replace
    them with your own measurements.
    """

    base_s: float = 0.010
    decode_row_s: float = 50e-6
    prefill_token_s: float = 50e-6
    context_token_s: float = 60e-9

    def step_s(self, items: Iterable[PlanItem]) -> float:
        """Return the duration in seconds of a step with these items."""
        rows = prefilled = context = 0
        for item in items:
            count = 1 if item.tokens is None else len(item.tokens)
            context += item.start + count
            if count == 1 and item.num_samples:
                rows += 1
            else:
                prefilled += count
        return self.seconds(rows, prefilled, context)

    def seconds(self, rows: int, prefilled: int, context: float) -> float:
        """Return the duration in seconds of a step.

        Args:
            rows: number of decoding rows.
            prefilled: number of prefilled tokens.
            context: number of tokens of context, summed over the rows and chunks.
        """
        return (
            self.base_s + rows * self.decode_row_s + prefilled * self.prefill_token_s + context * self.context_token_s
        )
