"""The new-token ratio: the share of a request's expected output for which admission reserves memory.

A retraction never lowers the ratio; each step with a decode row decays it; an idle scheduler resets it.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable

from ..request import Request

INIT_RATIO = 0.7
MIN_SHARE = 0.14
DECAY_STEPS = 600
RETRACT_LOOKAHEAD = 20  # output tokens per remaining request that are added to the estimate after a retraction


class NewTokenRatio:
    """Holds the ratio as ``value``, which is always in [minimum, 1]."""

    def __init__(self, conservativeness: float = 1.0) -> None:
        self.initial = min(INIT_RATIO * conservativeness, 1.0)
        self.minimum = MIN_SHARE * self.initial
        self.value = self.initial
        self._decay = (self.initial - self.minimum) / DECAY_STEPS

    def decay(self) -> None:
        """Lower the ratio, but not below its minimum. Call it after each step with a decode row."""
        self.value = max(self.value - self._decay, self.minimum)

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


class OutputLengths:
    """The 90th percentile of the output lengths of the last ``window`` finished requests.

    Admission uses it as the expected output length if max_tokens is absent or far too large.
    """

    def __init__(self, *, first_guess: int = 512, window: int = 512) -> None:
        self._first_guess = first_guess
        self._window = window
        self._recent: deque[int] = deque()
        self._sorted: list[int] = []

    def ended(self, req: Request, *, finished: bool) -> None:
        """See ``EndListener``. Requests with ``max_tokens`` 0 are not counted."""
        if finished and req.sampling.max_tokens:
            self.add(req.num_outputs)

    def add(self, length: int) -> None:
        """Record that a request finished with ``length`` output tokens."""
        self._recent.append(length)
        insort(self._sorted, length)
        if len(self._recent) > self._window:
            del self._sorted[bisect_left(self._sorted, self._recent.popleft())]

    @property
    def expected(self) -> int:
        """The percentile in tokens; ``first_guess`` until a request has finished."""
        if not self._sorted:
            return self._first_guess
        return self._sorted[min(len(self._sorted) * 9 // 10, len(self._sorted) - 1)]
