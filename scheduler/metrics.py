"""Scheduler metrics: monotonic totals and histogram samples, sent as snapshots. The module reads no clock."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping

from ebbtide.messages import Resumption, Stats
from ebbtide.plan import PlanItem

from .memory.accounting import AuditedPool
from .phase_recorder import PhaseRecorder
from .request import Request


def pool_gauges(pool: AuditedPool) -> dict[str, float]:
    """Return the accounting terms of one pool, in tokens."""
    accounting = pool.accounting()
    pages = {
        "available": accounting.available,
        "evictable": accounting.evictable,
        "protected": accounting.protected,
        "session_held": accounting.session_held,
        "uncached": accounting.uncached,
        "quarantined": accounting.quarantined,
    }
    return {f"kv_{term}_tokens{{pool={pool.name}}}": count * pool.page_size for term, count in pages.items()}


class SchedulerMetrics:
    """Totals since the start, and histogram samples since the last snapshot.

    The keys are metric names, see ``Stats``.

    Attributes:
        phases: records the phases of requests for traces; None if requests are not traced.
    """

    def __init__(self, phases: PhaseRecorder | None = None) -> None:
        self.phases = phases
        self.totals: Counter[str] = Counter()
        self.num_ends = 0
        self._observations: defaultdict[str, list[float]] = defaultdict(list)
        self._without_first_token_time: list[Request] = []  # requests whose first token has no timestamp yet
        self._finished: list[Request] = []  # requests that finished since the last call of ``stamp``
        self._resumptions: list[Resumption] = []
        self._now = 0.0

    def count(self, name: str, amount: int = 1) -> None:
        """Add ``amount``, which must not be negative, to a total."""
        self.totals[name] += amount

    def observe(self, name: str, value: float) -> None:
        """Add a histogram sample."""
        self._observations[name].append(value)

    def received(self, num_requests: int = 1) -> None:
        """Count new requests."""
        self.count("num_received_requests_total", num_requests)

    def admitted(self, req: Request, cached_tokens: int, now: float) -> None:
        """Count the start of a request. Prompt and cached tokens are counted at its first start only."""
        history = req.history
        history.queue_s += now - history.queued_since_s
        if req.is_retracted:
            self.count("num_resumed_requests_total")
            self.observe("retract_resume_seconds", now - history.retracted_since_s)
            history.retracted_s += now - history.retracted_since_s
            self._resumptions.append(Resumption(req.rid, now - history.retracted_since_s))
        if history.first_run_s is None:
            history.first_run_s = now
            history.cached_tokens = cached_tokens
            self.count("prompt_tokens_total", req.prompt_len)
            self.count("cached_tokens_total", cached_tokens)
            self.observe("queue_time_seconds", now - history.arrival_s)
        if self.phases is not None:
            self.phases.started(req, now)

    def retracted(self, req: Request, now: float) -> None:
        """Count a retraction."""
        req.history.retracted_since_s = req.history.queued_since_s = now
        self.count("num_retracted_requests_total")
        self.count("num_retracted_input_tokens_total", req.prompt_len)
        self.count("num_retracted_output_tokens_total", req.num_outputs)
        if self.phases is not None:
            self.phases.retracted(req, now)

    def planned(self, items: Iterable[PlanItem]) -> None:
        """Count a step that computes ``items``."""
        self.observe("scheduler_step_tokens", sum(1 if item.tokens is None else len(item.tokens) for item in items))

    def sampled(self, req: Request) -> None:
        """Count an output token."""
        self.totals["generation_tokens_total"] += 1  # not count(), because a call per token would be slow
        if req.history.first_token_s is None:
            self._without_first_token_time.append(req)

    @property
    def now(self) -> float:
        """The time of the last call of ``stamp``."""
        return self._now

    def stamp(self, now: float) -> None:
        """Use ``now`` as the timestamp of the first tokens and of the finishes counted since the last call.

        The results of a step contain no timestamps.
        """
        self._now = now
        for req in self._without_first_token_time:
            history = req.history
            if history.first_token_s is None and history.first_run_s is not None:
                history.first_token_s = now
                self.observe("prefill_time_seconds", now - history.first_run_s)
        for req in self._finished:
            self._observe_durations(req, now)
        self._without_first_token_time, self._finished = [], []
        if self.phases is not None:
            self.phases.stamp(now)

    def ended(self, req: Request, reason: str, *, aborted: bool) -> None:
        """Count the end of a request.

        reason: the finish reason, or the reason for the abort.
        """
        self.num_ends += 1
        if req.is_retracted:
            self.count(f"num_ended_while_retracted_total{{reason={reason}}}")
            waited_s = max(self._now - req.history.retracted_since_s, 0.0)
            self._resumptions.append(Resumption(req.rid, waited_s, reason))
        if aborted:
            self.count(f"num_aborted_requests_total{{reason={reason}}}")
        else:
            self.count(f"num_requests_total{{finish_reason={reason}}}")
            self.observe("request_prompt_tokens", req.prompt_len)
            self.observe("request_generation_tokens", req.num_outputs)
            self._finished.append(req)
        self.observe("retractions_per_request", req.history.retraction_count)
        if self.phases is not None:
            self.phases.ended(req)

    def refused(self, reason: str, num_requests: int) -> None:
        """Count requests that were refused without having been registered."""
        self.received(num_requests)
        self.num_ends += num_requests
        self.count(f"num_aborted_requests_total{{reason={reason}}}", num_requests)

    def _observe_durations(self, req: Request, now: float) -> None:
        history = req.history
        if history.first_run_s is None or history.first_token_s is None:
            return
        decode_s = now - history.first_token_s
        self.observe("inference_time_seconds", now - history.first_run_s)
        self.observe("decode_time_seconds", decode_s)
        if req.num_outputs > 1:
            self.observe("time_per_output_token_seconds", decode_s / (req.num_outputs - 1))

    def snapshot(self, gauges: Mapping[str, float]) -> Stats:
        """Return all totals, samples and resumptions as one message. Clears the samples and the resumptions."""
        observations, self._observations = dict(self._observations), defaultdict(list)
        resumptions, self._resumptions = self._resumptions, []
        return Stats(
            gauges=dict(gauges),
            totals={k: float(v) for k, v in self.totals.items()},
            observations=observations,
            resumptions=resumptions,
        )
