"""Queue timeouts and request timeouts. The caller passes the current time, in seconds.

Neither timeout includes the time that a request spends waiting after a retraction.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

from ebbtide.messages import AbortReq, GenerateReq

from .lifecycle import Lifecycle
from .request import Request

MIN_INTERVAL_S = 0.05  # minimum time between two checks of the same deadline, for a retracted request
REASON = "timeout"


@dataclass(order=True, slots=True)
class _Deadline:
    due_s: float  # time at which the limit is checked next
    number: int
    rid: str = field(compare=False)
    limit_s: float = field(compare=False)  # seconds from the arrival to the limit
    starts: bool = field(compare=False)  # True for the queue timeout, False for the request timeout


class Deadlines:
    """A heap of deadlines. When a request ends, its entries stay until their deadlines have passed."""

    def __init__(self, lifecycle: Lifecycle) -> None:
        self._lifecycle = lifecycle
        self._heap: list[_Deadline] = []
        self._number = 0

    def watch(self, message: GenerateReq, now: float) -> None:
        """Add the deadlines of a request.

        The queue timeout applies to the first choice only; the other choices wait until the prompt is computed.
        """
        if message.queue_timeout_s is not None:
            self._add(message.rids[0], message.queue_timeout_s, now, starts=True)
        if message.timeout_s is not None:
            for rid in message.rids:
                self._add(rid, message.timeout_s, now, starts=False)

    def expire(self, now: float) -> None:
        """Abort the requests whose deadline has passed."""
        while self._heap and self._heap[0].due_s <= now:
            deadline = self._heap[0]
            left_s = self._left_s(deadline, now)
            if left_s is not None and left_s <= 0:
                self._abort(self._lifecycle.requests[deadline.rid], deadline)
            heapq.heappop(self._heap)  # only after the abort: if the abort raises, the next call repeats it
            if left_s is not None and left_s > 0:
                deadline.due_s = now + max(left_s, MIN_INTERVAL_S)
                heapq.heappush(self._heap, deadline)

    def _left_s(self, deadline: _Deadline, now: float) -> float | None:
        """Returns the seconds until the limit is reached. Returns None if the limit no longer applies."""
        req = self._lifecycle.requests.get(deadline.rid)
        if req is None or (deadline.starts and req.history.first_run_s is not None):
            return None
        history = req.history
        waited_s = history.retracted_s + (now - history.retracted_since_s if req.is_retracted else 0.0)
        return history.arrival_s + deadline.limit_s + waited_s - now

    def _abort(self, req: Request, deadline: _Deadline) -> None:
        if deadline.starts:
            text = "The request was not started in time (--queue-timeout)."
        else:
            text = "The request did not end in time ('timeout' in the request, or --request-timeout)."
        abort = AbortReq(req.rid, REASON, 504, REASON, text, req.num_outputs)
        self._lifecycle.abort(req, abort, tell_front=True)

    def _add(self, rid: str, limit_s: float, now: float, *, starts: bool) -> None:
        self._number += 1
        heapq.heappush(self._heap, _Deadline(now + limit_s, self._number, rid, limit_s, starts))
