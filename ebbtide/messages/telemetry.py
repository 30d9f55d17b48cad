"""Messages about the processes: metrics, heartbeats, pressure events and the runner."""

from __future__ import annotations

from .base import Message, Part


class Stats(Message, frozen=True):
    """Scheduler → front: one snapshot for the metrics registry, at most every 100 ms and once on becoming idle.

    totals are monotone over the scheduler's life; observations are the histogram samples since the last snapshot.
    A key is the metric's name without the prefix; one label is written ``name{label=value}``.
    """

    gauges: dict[str, float]
    totals: dict[str, float]
    observations: dict[str, list[float]]


class Heartbeat(Message, frozen=True):
    """A child's loop is alive. ``handled`` counts the messages it has taken from its inbox.

    state: running, blocked or idle. reason: why nothing runs although requests wait, once that has lasted.
    stalled_s: seconds since the last progress; 0 when idle. num_requests: how many it keeps something of.
    """

    source: str
    handled: int
    state: str = "idle"
    reason: str = ""
    stalled_s: float = 0.0
    num_requests: int = 0


class PressureVictim(Part, frozen=True):
    """One request that gave way. tokens_to_recompute: what its return costs when nothing of it stays cached."""

    rid: str
    num_output_tokens: int
    prompt_tokens: int
    freed_tokens: int
    tokens_to_recompute: int
    num_retractions: int
    offloaded: bool = False


class PressureEvent(Message, frozen=True):
    """Scheduler → front: memory was short (or a test or a higher priority asked), and who gave way.

    cause: "memory", "priority" or "test". Tokens are whole pages. aborted: the last request, when not even it fits.
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


class RunnerInfo(Part, frozen=True):
    """What the model runner measured; said once when ready. The pool has ``num_pages`` pages of ``page_size``.

    num_host_pages: size of the host tier, in pages like the pool's. recompute_token_s, restore_token_s: measured
    seconds per token of prefill, and of copying K/V to the host and back; both 0 when there is no host tier.
    """

    context_length: int
    vocab_size: int
    num_pages: int
    page_size: int
    num_rows: int
    eos_token_ids: tuple[int, ...]
    pool_bytes: int = 0
    device: str = "cpu"
    dtype: str = "float32"
    attention: str = ""
    max_in_flight: int = 1
    num_host_pages: int = 0
    recompute_token_s: float = 0.0
    restore_token_s: float = 0.0
