"""The policies that the simulation compares: ebbtide's own, those of vLLM, SGLang and TensorRT-LLM on ebbtide's
scheduler, and an oracle.

docs/simulate.md lists the behavior of vLLM and SGLang that is not modelled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from ebbtide.scheduler.batching.admission import AdmissionResult, Verdict
from ebbtide.scheduler.batching.new_token_ratio import RETRACT_LOOKAHEAD, NewTokenRatio
from ebbtide.scheduler.batching.output_lengths import OutputLengths
from ebbtide.scheduler.batching.scheduling_policies import ReservesPerStep, SchedulingPolicies, default_policies
from ebbtide.scheduler.memory.kv_pool import KvPool
from ebbtide.scheduler.memory.pool import Pool
from ebbtide.scheduler.memory.prefix_cache import MatchResult
from ebbtide.scheduler.request import Request

from ...paging import pages_for
from ...retract_policies import RETRACT_POLICIES, Candidate, R, by_cost, by_length
from .bounds import OracleAdmission, WholeOutputAdmission
from .trace import TraceRequest

CLIP = 4096  # maximum number of output tokens for which SGLang's admission reserves memory


@dataclass(frozen=True, slots=True)
class Policy:
    """A compared policy.

    Attributes:
        policies: creates the policies from the admission parameter and the list of the load's requests.
        parameter: name of the admission parameter.
        default: default of the admission parameter.
        bounded: True if --max-retractions and --headroom apply to the policy.
    """

    policies: Callable[[float, Sequence[TraceRequest]], SchedulingPolicies]
    parameter: str
    default: float
    bounded: bool


def newest_first(candidates: Sequence[Candidate[R]], _shortfall: int) -> Candidate[R]:
    """Return vLLM's victim: the most recently admitted request. Candidates are in order of admission."""
    return candidates[-1]


class WatermarkAdmission(ReservesPerStep):
    """vLLM's admission: the known tokens must fit, and a share of the pool must stay free.

    No pages are reserved for output tokens.
    """

    def __init__(self, pool: Pool, watermark: float) -> None:
        self._pool = pool
        self._watermark_pages = watermark * pool.capacity
        self._alone = True

    def start_step(self, running: Iterable[Request]) -> None:
        """See ``AdmissionRule``."""
        self._alone = not list(running)

    def charge(self, req: Request) -> None:
        """See ``AdmissionRule``."""
        self._alone = False

    def evaluate(self, req: Request, *, without: Sequence[Request] = ()) -> AdmissionResult:
        """See ``AdmissionRule``."""
        known = pages_for(len(req.known), self._pool.page_size)
        if known > self._pool.capacity:
            return AdmissionResult(Verdict.NEVER_FITS, MatchResult())
        match = self._pool.tree_cache.match_prefix(req)
        kept_free = 0.0 if self._alone else self._watermark_pages
        fits = known - match.num_locked + kept_free <= self._pool.usable_pages + sum(map(self._pool.freed_by, without))
        return AdmissionResult(Verdict.ADMIT if fits else Verdict.WAIT, match)


class RemainderAdmission(ReservesPerStep):
    """SGLang's admission: reserves ratio × remaining output per running request, and the whole output of a candidate.

    The remaining output is clipped to CLIP tokens. Nothing is reserved for later chunks of a prompt. A request that
    runs alone needs memory only for its known tokens: SGLang clips its max_new_tokens to the size of the pool.
    """

    def __init__(self, pool: Pool, ratio: NewTokenRatio) -> None:
        self._pool = pool
        self._ratio = ratio
        self._reserved = 0.0
        self._alone = True

    def start_step(self, running: Iterable[Request]) -> None:
        """See ``AdmissionRule``."""
        self._reserved = 0.0
        self._alone = True
        for req in running:
            self._alone = False
            self._reserved += self._ratio.value * _clipped_remainder(req)

    def charge(self, req: Request) -> None:
        """See ``AdmissionRule``. In the step that admits a request, its whole remaining output is reserved."""
        self._alone = False
        self._reserved += (
            self._pool.missing_pages(req, len(req.known)) + 1
        ) * self._pool.page_size + _clipped_remainder(req)

    def evaluate(self, req: Request, *, without: Sequence[Request] = ()) -> AdmissionResult:
        """See ``AdmissionRule``."""
        size = self._pool.page_size
        known = pages_for(len(req.known), size)
        if known > self._pool.capacity:
            return AdmissionResult(Verdict.NEVER_FITS, MatchResult())
        match = self._pool.tree_cache.match_prefix(req)
        usable = self._pool.usable_pages + sum(map(self._pool.freed_by, without))
        if self._alone:
            fits = known - match.num_locked <= usable
        else:
            charge = (known - match.num_locked + 1) * size + _clipped_remainder(req)
            fits = self._reserved + charge < usable * size
        return AdmissionResult(Verdict.ADMIT if fits else Verdict.WAIT, match)


class ReplacedRatio(NewTokenRatio):
    """SGLang's ratio. A retraction sets it to the estimate, even if that lowers the ratio or is below the minimum."""

    def raise_after_retract(self, survivors: Iterable[Request]) -> None:
        """See ``NewTokenRatio``."""
        kept = list(survivors)
        outputs = sum(req.num_outputs for req in kept)
        limit = sum(req.sampling.max_tokens for req in kept)
        self.value = min((outputs + RETRACT_LOOKAHEAD * len(kept)) / (limit + 1), 1.0)


def _clipped_remainder(req: Request) -> int:
    return min(req.sampling.max_tokens - req.num_outputs, CLIP)


def _own(name: str) -> Policy:
    def policies(conservativeness: float, _requests: Sequence[TraceRequest]) -> SchedulingPolicies:
        return default_policies(name, conservativeness=conservativeness)

    return Policy(policies, "conservativeness", 1.0, bounded=True)


def _vllm(watermark: float, _requests: Sequence[TraceRequest]) -> SchedulingPolicies:
    def admission(
        pool: Pool, _ratio: NewTokenRatio, _lengths: OutputLengths, _others: Sequence[KvPool]
    ) -> WatermarkAdmission:
        return WatermarkAdmission(pool, watermark)

    return SchedulingPolicies(newest_first, admission, NewTokenRatio, headroom=0)


def _sglang(_conservativeness: float, _requests: Sequence[TraceRequest]) -> SchedulingPolicies:
    def admission(
        pool: Pool, ratio: NewTokenRatio, _lengths: OutputLengths, _others: Sequence[KvPool]
    ) -> RemainderAdmission:
        return RemainderAdmission(pool, ratio)

    return SchedulingPolicies(by_length, admission, ReplacedRatio, retracted_first=False, headroom=0)


def _no_evict(_conservativeness: float, _requests: Sequence[TraceRequest]) -> SchedulingPolicies:
    def admission(
        pool: Pool, _ratio: NewTokenRatio, _lengths: OutputLengths, _others: Sequence[KvPool]
    ) -> WholeOutputAdmission:
        return WholeOutputAdmission(pool)

    return SchedulingPolicies(by_length, admission, NewTokenRatio, headroom=0)


def _oracle(_conservativeness: float, requests: Sequence[TraceRequest]) -> SchedulingPolicies:
    def admission(
        pool: Pool, _ratio: NewTokenRatio, _lengths: OutputLengths, _others: Sequence[KvPool]
    ) -> OracleAdmission:
        return OracleAdmission(pool, requests)

    return SchedulingPolicies(by_cost, admission, NewTokenRatio, headroom=0)


POLICIES: dict[str, Policy] = {
    **{name: _own(name) for name in RETRACT_POLICIES},
    "vllm": Policy(_vllm, "watermark", 0.0, bounded=False),
    "sglang": Policy(_sglang, "conservativeness", 1.0, bounded=False),
    "no-evict": Policy(_no_evict, "conservativeness", 1.0, bounded=False),
    "oracle": Policy(_oracle, "conservativeness", 1.0, bounded=False),
}
