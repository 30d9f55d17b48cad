"""Messages about metrics, heartbeats, pressure events and the runner."""

from __future__ import annotations

import msgspec

from .base import Message, Part

FULL_POOL = "full"  # name of the first pool (full attention): the K/V of all layers without a window pool
SWA_POOL = "swa"  # name of the pool of the layers with a sliding window
MAMBA_POOL = "mamba"  # name of the pool of the layers with a recurrent state


class Resumption(Part, frozen=True):
    """The end of a request's wait after a retraction.

    Attributes:
        waited_s: seconds from the retraction until the outcome.
        outcome: "resumed" if the request runs again, otherwise the reason for which it ended before it ran again.
    """

    rid: str
    waited_s: float
    outcome: str = "resumed"


class Stats(Message, frozen=True):
    """Scheduler → front: metrics snapshot, sent at most every 100 ms and once when the scheduler becomes idle.

    A key is the name of a metric without its prefix; the key of a labelled series is ``name{label=value}``.

    Attributes:
        totals: counters that only grow during the scheduler's lifetime.
        observations: histogram samples since the last snapshot.
        resumptions: retracted requests that resumed or ended since the last snapshot.
    """

    gauges: dict[str, float]
    totals: dict[str, float]
    observations: dict[str, list[float]]
    resumptions: list[Resumption] = msgspec.field(default_factory=list)


class Heartbeat(Message, frozen=True):
    """Child process → front: the child's loop is alive.

    Attributes:
        source: name of the process.
        handled: number of messages received so far.
        state: "running", "blocked" (requests wait and none runs) or "idle".
        reason: the reasons for which the requests wait, once the process has been blocked for --progress-alarm seconds;
            otherwise "".
        stalled_s: seconds since the last progress; 0 if the process is idle.
        num_requests: number of requests for which the process holds state.
    """

    source: str
    handled: int
    state: str = "idle"
    reason: str = ""
    stalled_s: float = 0.0
    num_requests: int = 0


class PressureVictim(Part, frozen=True):
    """One retracted request.

    Attributes:
        tokens_to_recompute: tokens to recompute when the request resumes, if none of them stays cached.
        offloaded: True if the request's KV was copied to the host tier.
    """

    rid: str
    num_output_tokens: int
    prompt_tokens: int
    freed_tokens: int
    tokens_to_recompute: int
    num_retractions: int
    offloaded: bool = False


class PressureEvent(Message, frozen=True):
    """Scheduler → front: requests were retracted. Token counts are in whole pages.

    Attributes:
        cause: "memory", "priority" or "test".
        aborted: id of the last running request if it did not fit alone and was aborted.
        pool: name of the pool that lacked pages; the first pool if ``cause`` is not "memory". All sizes refer to this
            pool.
    """

    step: int
    cause: str
    victims: list[PressureVictim]
    available_before: int
    available_after: int
    ratio_before: float
    ratio_after: float
    num_running: int
    num_waiting: int
    aborted: str | None = None
    pool: str = FULL_POOL


class PoolInfo(Part, frozen=True):
    """One pool of KV pages on the device.

    A page of ``MAMBA_POOL`` is a slot for one state: that after some token, whatever the number of tokens before it.
    Its page size is the context length.

    Attributes:
        page_size: number of tokens per page.
        window: number of tokens that a token reads in the pool: itself and those directly before it; None for all.
    """

    num_pages: int
    page_size: int
    name: str = FULL_POOL
    window: int | None = None


class PhaseChange(Part, frozen=True):
    """The moment at which a request entered a phase. Times are seconds on the system's monotonic clock.

    Attributes:
        phase: "prefill", "decode", "queue" (it was retracted) or "end".
        tokens_to_compute: tokens that a prefill computes.
        cached_tokens: tokens whose K/V a prefill takes from the prefix cache.
        restored_tokens: tokens whose K/V a prefill takes from the host tier.
    """

    rid: str
    phase: str
    time_s: float
    tokens_to_compute: int = 0
    cached_tokens: int = 0
    restored_tokens: int = 0


class PhaseChanges(Message, frozen=True):
    """Scheduler → front: the phase changes of one step, in order. Sent only if requests are traced."""

    changes: list[PhaseChange]


class RunnerInfo(Part, frozen=True):
    """Properties of the model runner, sent once when the scheduler process is ready.

    Attributes:
        context_length: maximum number of tokens of prompt and output together.
        pools: the device pools; the first one is ``FULL_POOL``. A running request has pages in each pool.
        num_rows: maximum number of running requests.
        max_in_flight: maximum number of submitted plans that are not collected yet.
        max_samples: maximum number of tokens that can be sampled per row and step.
        num_host_pages: number of pages of the host tier for the first pool; 0 without a host tier.
        more_host_pages: ``num_host_pages`` for each of the other pools. If it lacks a pool, the host tier is off.
        recompute_token_s: measured seconds of prefill per token; 0 without a host tier.
        restore_token_s: measured seconds per token of copying KV to the host and back; 0 without a host tier.
        deterministic: True if logits are bitwise identical whether a request runs alone, in a batch or after a
            retraction.
    """

    context_length: int
    vocab_size: int
    pools: tuple[PoolInfo, ...]
    num_rows: int
    eos_token_ids: tuple[int, ...]
    pool_bytes: int = 0
    device: str = "cpu"
    dtype: str = "float32"
    attention: str = ""
    max_in_flight: int = 1
    num_host_pages: int = 0
    more_host_pages: tuple[int, ...] = ()
    recompute_token_s: float = 0.0
    restore_token_s: float = 0.0
    max_samples: int = 1
    deterministic: bool = False

    @property
    def num_pages(self) -> int:
        """Number of pages of the first pool."""
        return self.pools[0].num_pages

    @property
    def page_size(self) -> int:
        """Number of tokens per page of the first pool."""
        return self.pools[0].page_size
