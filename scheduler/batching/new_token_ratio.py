"""The admission controller's one number: what share of its expected output a request is charged for.

Pressure never lowers it; calm decays it; idleness resets it.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable

from ..request import Request

INIT_RATIO = 0.7
MIN_SHARE = 0.14
DECAY_STEPS = 600
RETRACT_LOOKAHEAD = 20  # output tokens per survivor that an estimate after a retraction looks ahead


class NewTokenRatio:
    """See ``pressure.md`` §2. ``value`` lies in [minimum, 1] always."""

    def __init__(self, conservativeness: float = 1.0) -> None:
        self.initial = min(INIT_RATIO * conservativeness, 1.0)
        self.minimum = MIN_SHARE * self.initial
        self.value = self.initial
        self._decay = (self.initial - self.minimum) / DECAY_STEPS

    def decay(self) -> None:
        """One step with a decode row went by without pressure."""
        self.value = max(self.value - self._decay, self.minimum)

    def raise_after_retract(self, survivors: Iterable[Request]) -> None:
        """A retraction showed that the reservation was too small. An empty batch leaves it as it is."""
        outputs = limit = count = 0
        for req in survivors:
            outputs += req.num_outputs
            limit += req.sampling.max_tokens
            count += 1
        new_estimate_ratio = (outputs + RETRACT_LOOKAHEAD * count) / (limit + 1)
        self.value = min(max(self.value, new_estimate_ratio, self.minimum), 1.0)

    def reset(self) -> None:
        """Nothing runs and nothing waits."""
        self.value = self.initial


class OutputLengths:
    """Running 90 % quantile of finished output lengths, over the last ``window`` requests.

    It stands for the output of a request that names no max_tokens, or one that it will never reach.
    """

    def __init__(self, *, first_guess: int = 512, window: int = 512) -> None:
        self._first_guess = first_guess
        self._window = window
        self._recent: deque[int] = deque()
        self._sorted: list[int] = []

    def add(self, length: int) -> None:
        """One more request has finished with ``length`` output tokens."""
        self._recent.append(length)
        insort(self._sorted, length)
        if len(self._recent) > self._window:
            del self._sorted[bisect_left(self._sorted, self._recent.popleft())]

    @property
    def expected(self) -> int:
        """The quantile in tokens; the first guess until anything has finished."""
        if not self._sorted:
            return self._first_guess
        return self._sorted[min(len(self._sorted) * 9 // 10, len(self._sorted) - 1)]
