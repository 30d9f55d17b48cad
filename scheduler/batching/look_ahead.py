"""Looks ahead when the next step does not fit: some rows wait for memory that other requests are about to free.

After a retraction, the victim's tokens must be recomputed. If running requests are expected to end soon and free enough
memory, rows that lack a page instead skip a few steps and keep their memory.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..lifecycle import Lifecycle
from ..metrics import SchedulerMetrics
from ..request import Request
from ..request_memory import Memory
from .scheduling_policies import AdmissionRule


@dataclass(frozen=True, slots=True)
class LookAhead:
    """Chooses the decode rows of the next step when memory is short."""

    lifecycle: Lifecycle
    memory: Memory
    admission: AdmissionRule
    metrics: SchedulerMetrics

    def rows_to_plan(self) -> list[Request]:
        """Return the decode rows of the next step; an empty list if requests must be retracted instead.

        A row is part of the step if the free pages suffice for it and the rows before it: protected requests come
        first, then the others in order of admission. Every step has at least one row, until a request ends or every row
        lacks a page.
        """
        running = self.lifecycle.running
        if len(running) < 2 or not self.admission.expects_room():
            return []
        free = [pool.available_pages for pool in self.memory.pools]
        rows = []
        for req in sorted(running, key=lambda req: not req.protected):
            if not req.is_decoding:
                if req.protected:
                    return []  # its next page must not be given to others
                continue
            needs = [pool.missing_pages(req, req.computed + req.num_samples) for pool in self.memory.pools]
            if all(need <= left for need, left in zip(needs, free, strict=True)):
                free = [left - need for need, left in zip(needs, free, strict=True)]
                rows.append(req)
        if rows:
            self.metrics.count("num_delayed_rows_total", len(running) - len(rows))
        return rows
