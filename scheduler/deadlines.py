"""Requests whose time has run out: before they began to run, or altogether. Time is passed in, in seconds.

Waiting after a retraction is the server's doing and counts in neither.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

from ebbtide.messages import AbortReq, GenerateReq

from .endings import Endings
from .request import Request
from .state import State

LEAST_LOOK_S = 0.05  # one that waits after a retraction is looked at no more often
REASON = "timeout"


@dataclass(order=True, slots=True)
class _Deadline:
    """due_s: when to look. limit_s: seconds since the arrival. starts: the limit is for beginning to run."""

    due_s: float
    number: int
    rid: str = field(compare=False)
    limit_s: float = field(compare=False)
    starts: bool = field(compare=False)


class Deadlines:
    """A heap of who is due when. A request that has ended costs its entry until then, and nothing else."""

    def __init__(self, state: State, endings: Endings) -> None:
        self._state = state
        self._endings = endings
        self._heap: list[_Deadline] = []
        self._number = 0

    def watch(self, message: GenerateReq, now: float) -> None:
        """A request has arrived. Only its first choice must begin in time: the others wait for the prompt's pages."""
        if message.queue_timeout_s is not None:
            self._add(message.rids[0], message.queue_timeout_s, now, starts=True)
        if message.timeout_s is not None:
            for rid in message.rids:
                self._add(rid, message.timeout_s, now, starts=False)

    def expire(self, now: float) -> None:
        """End whose time has run out."""
        while self._heap and self._heap[0].due_s <= now:
            deadline = self._heap[0]
            left_s = self._left_s(deadline, now)
            if left_s is not None and left_s <= 0:
                self._end(self._state.requests[deadline.rid], deadline)
            heapq.heappop(self._heap)  # after the end: if the books are wrong there, it is tried again
            if left_s is not None and left_s > 0:
                deadline.due_s = now + max(left_s, LEAST_LOOK_S)
                heapq.heappush(self._heap, deadline)

    def _left_s(self, deadline: _Deadline, now: float) -> float | None:
        """Seconds that the request still has; None when the limit does not concern it any more."""
        req = self._state.requests.get(deadline.rid)
        if req is None or (deadline.starts and req.history.first_run_s is not None):
            return None
        history = req.history
        waited_s = history.retracted_s + (now - history.retracted_since_s if req.is_retracted else 0.0)
        return history.arrival_s + deadline.limit_s + waited_s - now

    def _end(self, req: Request, deadline: _Deadline) -> None:
        if deadline.starts:
            text = "The request did not begin to run in time (--queue-timeout)."
        else:
            text = "The request did not end in time ('timeout' in the request, or --request-timeout)."
        self._endings.abort(req, AbortReq(req.rid, REASON, 504, REASON, text, req.num_outputs), tell_front=True)

    def _add(self, rid: str, limit_s: float, now: float, *, starts: bool) -> None:
        self._number += 1
        heapq.heappush(self._heap, _Deadline(now + limit_s, self._number, rid, limit_s, starts))
