"""The duration of the simulated runner's steps on the real clock."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field

from ebbtide.plan import StepPlan
from ebbtide.step_cost import StepCost


@dataclass(slots=True)
class StepTimer:
    """Gives each step the duration from ``cost``, as on a device that works while the CPU plans the next step.

    A step begins when it is submitted or when the previous step ends, whichever is later.
    """

    cost: StepCost
    _ends: deque[float] = field(default_factory=deque)  # end times of the steps that were submitted and not awaited
    _last_end: float = 0.0

    def submitted(self, plan: StepPlan) -> None:
        """Record that a step was submitted."""
        self._last_end = max(self._last_end, time.monotonic()) + self.cost.step_s(plan.items)
        self._ends.append(self._last_end)

    def wait(self) -> None:
        """Sleep until the end of the oldest step."""
        time.sleep(max(self._ends.popleft() - time.monotonic(), 0.0))
