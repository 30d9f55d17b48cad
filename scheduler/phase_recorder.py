"""Records the moments at which requests enter a phase, for traces. The module reads no clock.

A request costs a few records and no work per token.
"""

from __future__ import annotations

from dataclasses import dataclass

from ebbtide.messages import PhaseChange

from .outbox import Outbox
from .request import Request


@dataclass(frozen=True, slots=True)
class _Start:
    """A start whose restored tokens are not known yet: the host tier is asked after the request has its row."""

    req: Request
    time_s: float
    num_known: int
    cached_tokens: int


class PhaseRecorder:
    """Adds ``PhaseChange`` objects to the output of the step, in order for each request."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._starts: list[_Start] = []
        self._ends: list[Request] = []  # requests that ended since the last call of ``stamp``
        self._prefilling: dict[str, tuple[Request, int]] = {}  # by id, with the number of outputs at the start

    def started(self, req: Request, now: float) -> None:
        """Record the start of a request that has its cached prefix."""
        self._starts.append(_Start(req, now, len(req.known), req.computed))
        self._prefilling[req.rid] = (req, req.num_outputs)

    def retracted(self, req: Request, now: float) -> None:
        """Record a retraction."""
        self._flush_starts()
        self._prefilling.pop(req.rid, None)
        self._outbox.output.phases.append(PhaseChange(req.rid, "queue", now))

    def ended(self, req: Request) -> None:
        """Record the end of a request; ``stamp`` sets its time."""
        self._ends.append(req)

    def stamp(self, now: float) -> None:
        """Record ``now`` as the time of the first tokens and request ends since the last call: results have no time."""
        self._flush_starts()
        phases = self._outbox.output.phases
        decoding = [req for req, num_outputs in self._prefilling.values() if req.num_outputs > num_outputs]
        for req in decoding:
            del self._prefilling[req.rid]
            phases.append(PhaseChange(req.rid, "decode", now))
        for req in self._ends:
            self._prefilling.pop(req.rid, None)
            phases.append(PhaseChange(req.rid, "end", now))
        self._ends = []

    def _flush_starts(self) -> None:
        for start in self._starts:
            restored = start.req.history.restored_tokens
            change = PhaseChange(
                start.req.rid,
                "prefill",
                start.time_s,
                tokens_to_compute=start.num_known - start.cached_tokens - restored,
                cached_tokens=start.cached_tokens,
                restored_tokens=restored,
            )
            self._outbox.output.phases.append(change)
        self._starts = []
