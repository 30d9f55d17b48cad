"""One running or waiting request: tokens known, tokens computed, pages held. Holds state; decides nothing."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING

from ebbtide.messages import SamplingParams, TextParams
from ebbtide.paging import pages_for

if TYPE_CHECKING:
    from .memory.prefix_cache import CacheNode


class Phase(Enum):
    """Where a request is."""

    WAITING = auto()
    RUNNING = auto()
    FINISHED = auto()


ALLOWED = {
    Phase.WAITING: {Phase.RUNNING, Phase.FINISHED},
    Phase.RUNNING: {Phase.WAITING, Phase.FINISHED},  # RUNNING -> WAITING is a retraction
    Phase.FINISHED: set[Phase](),
}


@dataclass(slots=True)
class History:
    """What happened to a request so far: it never influences its output."""

    arrival_s: float = 0.0
    queued_since_s: float = 0.0
    queue_s: float = 0.0
    retracted_since_s: float = 0.0
    retracted_s: float = 0.0  # spent waiting after retractions that are over
    first_run_s: float | None = None
    first_token_s: float | None = None
    cached_tokens: int = 0
    outputs_at_start: int = 0  # output tokens it had when it last began to run
    high_water: int = 0  # most tokens that ever were computed: what is computed again lies below
    recomputed_tokens: int = 0
    retraction_count: int = 0
    retractions_told: int = 0  # how many of them the client's usage knows of
    retracted_stain: bool = False  # was retracted at some time: later cache hits are its own past, not savings
    times_passed: int = 0


@dataclass(slots=True, eq=False)
class Request:
    """A request in the scheduler.

    known: prompt and output tokens. computed: how many of them have K/V, counting plans in flight; collected: not
    counting them. pages[:num_shared] belong to the prefix cache and are locked through ``node``; the rest is the
    request's own. sent_pages: how many page-table entries the runner knows. in_flight: samples not yet collected;
    pending: plans not yet collected. num_prompt_logprobs_sent: prompt tokens,
    the first included, whose log-probabilities are sent.
    """

    rid: str
    arrival: int
    prompt_len: int
    known: list[int]
    sampling: SamplingParams
    text: TextParams
    page_size: int
    priority: int = 0
    namespace: str = ""
    grammar: str = ""
    phase: Phase = Phase.WAITING
    computed: int = 0
    collected: int = 0
    in_flight: int = 0
    pending: int = 0
    num_prompt_logprobs_sent: int = 1
    row: int | None = None
    pages: list[int] = field(default_factory=list)
    num_shared: int = 0
    node: CacheNode | None = None
    sent_pages: int = 0
    row_ready: bool = False  # the runner has its sampling state
    started: bool = False  # its first TokenItem has gone out
    is_retracted: bool = False
    protected: bool = False
    stop_ids: frozenset[int] = frozenset()  # tokens that end it
    followers: list[Request] = field(default_factory=list)  # choices that wait for this one's prompt pages
    history: History = field(default_factory=History)
    tag: str = field(init=False)  # its name in messages

    def __post_init__(self) -> None:
        self.tag = f"request {self.rid}"

    def __str__(self) -> str:
        return self.tag

    @property
    def num_outputs(self) -> int:
        """Output tokens collected so far."""
        return len(self.known) - self.prompt_len

    @property
    def outputs(self) -> list[int]:
        """A copy of the output tokens."""
        return self.known[self.prompt_len :]

    @property
    def max_written(self) -> int:
        """Tokens of K/V it can ever need: the last output token's is never written."""
        return self.prompt_len + max(self.sampling.max_tokens, 1) - 1

    @property
    def needs_prompt_logprobs(self) -> bool:
        """Whether log-probabilities of prompt tokens are still to come."""
        return self.sampling.prompt_logprobs is not None and self.num_prompt_logprobs_sent < self.prompt_len

    @property
    def num_reusable(self) -> int:
        """Tokens whose K/V may come from elsewhere: with them come no logits.

        Logits are needed of the last known token, to sample, and of a prompt token whose successor has no
        log-probability yet.
        """
        return (self.num_prompt_logprobs_sent if self.needs_prompt_logprobs else len(self.known)) - 1

    @property
    def num_private(self) -> int:
        """Pages that are its own."""
        return len(self.pages) - self.num_shared

    @property
    def decodes(self) -> bool:
        """Whether its next item is one token: everything before is computed or in flight."""
        return self.computed == len(self.known) + self.in_flight - 1

    @property
    def awaits_last(self) -> bool:
        """Whether a result in flight is sure to be its last one."""
        return self.num_outputs + self.in_flight >= self.sampling.max_tokens and self.computed >= self.prompt_len

    @property
    def awaits_result(self) -> bool:
        """Whether nothing can be planned for it before what is in flight has come.

        It may be the last, or decide what may be sampled next.
        """
        return self.in_flight > 0 and (bool(self.grammar) or self.awaits_last)

    @property
    def at_page_end(self) -> bool:
        """Whether its next token needs a new page."""
        return self.computed == len(self.pages) * self.page_size

    @property
    def lacks_pages(self) -> int:
        """Pages that its known tokens still need."""
        return max(pages_for(len(self.known), self.page_size) - len(self.pages), 0)

    def move_to(self, phase: Phase) -> None:
        """Change the phase. Raises ValueError for a move that is not in ALLOWED."""
        if phase not in ALLOWED[self.phase]:
            raise ValueError(f"{self} cannot go from {self.phase.name} to {phase.name}")
        self.phase = phase

    def forget_memory(self) -> None:
        """Reset what describes memory that is gone. in_flight and pending stay: a result in flight is delivered."""
        self.computed = self.collected = self.sent_pages = self.num_shared = 0
        self.row = self.node = None
        self.row_ready = False
        self.pages = []

    def reset_for_retract(self, *, max_retractions: int) -> None:
        """Back to "nothing computed", and counted. All else of a request follows from known tokens and parameters."""
        self.forget_memory()
        self.is_retracted = True
        self.history.retraction_count += 1
        self.history.retracted_stain = True
        self.protected = self.protected or 0 <= max_retractions <= self.history.retraction_count
