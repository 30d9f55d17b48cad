"""Chooses the number of threads of each step from the durations of earlier steps.

The threads wait for each other after each operation. While another process uses one of their cores, each wait lasts
until the operating system runs the missing thread again: a small step is then faster with fewer threads. No fixed
number is always best, because the load of other processes changes. The module uses no clock and no threads.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from statistics import median

TRIAL_STEPS = 4  # number of steps in a trial, which are compared with the same number of earlier steps
SHORT_TRIAL = 2  # number of steps after which a clearly slower trial ends
# Ratio of a trial's durations to the earlier ones: below FASTER, the tried number is adopted; above SLOWER, the trial
# ends early.
FASTER, SLOWER = 0.93, 1.3
FIRST_PAUSE, LONGEST_PAUSE = 16, 256  # steps between trials; doubled after each trial whose number is not adopted


@dataclass(slots=True)
class _Sized:
    """The measurements of steps of similar sizes.

    Attributes:
        best: index of the current number of threads.
        times: seconds per token of the latest steps with this number.
        trial: index of the number that is being tried; None if there is no trial.
        trial_times: seconds per token of the trial's steps.
        pause: number of steps until the next trial.
        next_pause: number of steps between the end of this trial and the next one.
        upwards: True if the next trial uses more threads.
    """

    best: int
    times: deque[float] = field(default_factory=lambda: deque(maxlen=TRIAL_STEPS))
    trial: int | None = None
    trial_times: list[float] = field(default_factory=list)
    pause: int = FIRST_PAUSE
    next_pause: int = FIRST_PAUSE
    upwards: bool = False


class ThreadCounts:
    """Chooses the number of threads for each size of steps. Call ``record`` after each ``choose``."""

    def __init__(self, most: int) -> None:
        """most: the initial and maximum number of threads."""
        self._counts = [*(1 << power for power in range((most - 1).bit_length())), most]
        self._sizes: dict[int, _Sized] = {}

    def choose(self, num_tokens: int) -> int:
        """Return the number of threads for a step with ``num_tokens`` tokens."""
        sized = self._sized(num_tokens)
        return self._counts[sized.best if sized.trial is None else sized.trial]

    def record(self, num_tokens: int, seconds: float) -> None:
        """Record the duration of the step for which ``choose`` was called."""
        sized, time = self._sized(num_tokens), seconds / num_tokens
        if sized.trial is None:
            sized.times.append(time)
            sized.pause -= 1
            if sized.pause <= 0 and len(sized.times) == TRIAL_STEPS:
                self._start_trial(sized)
        else:
            sized.trial_times.append(time)
            self._judge(sized, sized.trial)

    def _sized(self, num_tokens: int) -> _Sized:
        return self._sizes.setdefault(num_tokens.bit_length(), _Sized(len(self._counts) - 1))

    def _start_trial(self, sized: _Sized) -> None:
        """Start a trial with the next larger number or the next smaller one, alternately."""
        for _ in range(2):
            other = sized.best + (1 if sized.upwards else -1)
            sized.upwards = not sized.upwards
            if 0 <= other < len(self._counts):
                sized.trial, sized.trial_times = other, []
                return

    def _judge(self, sized: _Sized, trial: int) -> None:
        ratio = median(sized.trial_times) / median(sized.times)
        if len(sized.trial_times) < (SHORT_TRIAL if ratio > SLOWER else TRIAL_STEPS):
            return
        if ratio < FASTER:
            sized.best, sized.next_pause = trial, FIRST_PAUSE
            sized.times.extend(sized.trial_times)
        else:
            sized.next_pause = min(2 * sized.next_pause, LONGEST_PAUSE)
        sized.trial, sized.pause = None, sized.next_pause
