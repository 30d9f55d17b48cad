"""The new-token ratio: the share of the remaining max_tokens for which admission reserves memory.

A retraction never lowers the ratio; an idle scheduler resets it.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..request import Request

INIT_RATIO = 0.7
MIN_SHARE = 0.14
DECAY_STEPS = 600
RETRACT_LOOKAHEAD = 20  # output tokens per remaining request that are added to the estimate after a retraction


class NewTokenRatio:
    """Holds the ratio as ``value``, in [minimum, 1]. Each step with a decode row lowers it."""

    def __init__(self, conservativeness: float = 1.0) -> None:
        self.initial = min(INIT_RATIO * conservativeness, 1.0)
        self.minimum = MIN_SHARE * self.initial
        self.value = self.initial
        self._decay = (self.initial - self.minimum) / DECAY_STEPS

    def decay(self) -> None:
        """Lower the ratio, but not below its minimum. Call it after each step with a decode row."""
        self.value = max(self.value - self._decay, self.minimum)

    def report(self, reserved: float, rest: float) -> None:
        """Does nothing: only ``decay``, ``raise_after_retract`` and ``reset`` change this ratio."""

    def raise_after_retract(self, survivors: Iterable[Request]) -> None:
        """Raise the ratio after a retraction, which shows that it was too low.

        survivors: the requests that are still running. If there are none, the ratio does not change.
        """
        outputs = limit = count = 0
        for req in survivors:
            outputs += req.num_outputs
            limit += req.sampling.max_tokens
            count += 1
        new_estimate_ratio = (outputs + RETRACT_LOOKAHEAD * count) / (limit + 1)
        self.value = min(max(self.value, new_estimate_ratio, self.minimum), 1.0)

    def reset(self) -> None:
        """Set the ratio to its initial value. Call it when no request is running or waiting."""
        self.value = self.initial


class ReportedRatio(NewTokenRatio):
    """The ratio that the admission rule reports. A retraction can raise it until the next report."""

    def decay(self) -> None:
        """Does nothing: the rule reports a new ratio instead."""

    def report(self, reserved: float, rest: float) -> None:
        """Record that ``reserved`` tokens are reserved for requests that may output up to ``rest`` more tokens."""
        self.value = min(max(reserved / rest, 0.0), 1.0) if rest > 0 else self.value
