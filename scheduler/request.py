"""The state of one request: the tokens that are known, how many of them are computed, and the pages.

The module makes no decisions.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING, ClassVar

from ebbtide.messages import SamplingParams, TextParams

if TYPE_CHECKING:
    from .memory.cached_request import CacheNode


class Phase(Enum):
    """The state of a request in its lifecycle."""

    WAITING = auto()
    RUNNING = auto()
    FINISHED = auto()


@dataclass(slots=True)
class History:
    """Statistics of a request. They never influence its output."""

    arrival_s: float = 0.0
    queued_since_s: float = 0.0
    queue_s: float = 0.0  # total time in the waiting queue
    retracted_since_s: float = 0.0
    retracted_s: float = 0.0  # total waiting time after retractions, without the current one
    first_run_s: float | None = None
    first_token_s: float | None = None
    cached_tokens: int = 0  # number of tokens found in the prefix cache at the first admission
    high_water: int = 0  # maximum number of tokens computed so far; computing one of them again is recomputation
    recomputed_tokens: int = 0
    retraction_count: int = 0
    reported_retractions: int = 0  # number of retractions that the pressure usage already sent includes
    retracted_stain: bool = (
        False  # True after a retraction: later cache hits may be its own pages, so they are not counted
    )
    restored_tokens: int = 0  # tokens copied back from the host tier when the request last started
    times_passed: int = 0  # number of younger requests that have overtaken it in the queue


@dataclass(slots=True, eq=False)
class Request:
    """A request in the scheduler.

    ``pages[:num_shared]`` belong to the prefix cache and are locked through ``node``; the rest is private.
    """

    rid: str
    arrival: int  # position in the order of arrival
    prompt_len: int  # tokens
    known: list[int]  # prompt and output tokens; shared by all choices until a choice has an output
    sampling: SamplingParams
    text: TextParams
    page_size: int  # tokens
    priority: int = 0
    account: str = ""  # requests of the same account share its turns with --schedule-policy fair
    namespace: str = ""  # prefix cache namespace: requests of different namespaces share no pages
    grammar: str = ""
    max_samples: int = 1  # maximum number of output tokens of one decode item
    phase: Phase = Phase.WAITING
    computed: int = 0  # number of known tokens with K/V, including steps in flight
    num_confirmed: int = 0  # number of known tokens with K/V, excluding steps in flight
    samples_in_flight: int = 0  # number of sampling items without a result yet; each yields at least one token
    steps_in_flight: int = 0  # number of plans whose result has not been collected
    num_prompt_logprobs_sent: int = 1  # includes the first token, which has no log-probability
    row: int | None = None  # its row in the model runner; None unless it is running
    pages: list[int] = field(default_factory=list)
    num_shared: int = 0
    node: CacheNode | None = None  # prefix cache node at the end of its shared pages
    sent_pages: int = 0  # number of page-table entries that were sent to the runner
    sent_elsewhere: int = 0  # number of tokens whose pages in all pools except the first were sent to the runner
    row_ready: bool = False  # True if the runner has its sampling state
    started: bool = False  # True once its first TokenItem has been sent
    is_retracted: bool = False  # True from a retraction until the request runs again
    protected: bool = False  # True after --max-retractions retractions: the request is not retracted again
    stop_ids: frozenset[int] = frozenset()  # token ids that end its output
    sibling_choices: list[Request] = field(
        default_factory=list
    )  # choices that are waiting until this choice has computed the prompt
    history: History = field(default_factory=History)
    shares_known: bool = False  # True if other choices use the same list ``known``
    tag: str = field(init=False)  # the request's name in messages
    is_locked: ClassVar[bool] = False  # see PageOwner: no other request may read its pages
    is_tree_node: ClassVar[bool] = False

    def __post_init__(self) -> None:
        self.tag = f"request {self.rid}"

    def __str__(self) -> str:
        return self.tag

    def append(self, token: int) -> None:
        """Add an output token."""
        if self.shares_known:
            self.known = self.known[:]
            self.shares_known = False
        self.known.append(token)

    @property
    def is_waiting(self) -> bool:
        """True if the request is in the queue or is waiting for its first choice."""
        return self.phase is Phase.WAITING

    @property
    def num_outputs(self) -> int:
        """Number of output tokens so far."""
        return len(self.known) - self.prompt_len

    @property
    def outputs(self) -> list[int]:
        """A copy of the output tokens."""
        return self.known[self.prompt_len :]

    @property
    def max_kv_tokens(self) -> int:
        """The maximum number of tokens whose K/V the request can need: the K/V of the last output token is never
        written.
        """
        return self.prompt_len + max(self.sampling.max_tokens, 1) - 1

    @property
    def needs_prompt_logprobs(self) -> bool:
        """True while log-probabilities of prompt tokens have yet to be sent."""
        return self.sampling.prompt_logprobs is not None and self.num_prompt_logprobs_sent < self.prompt_len

    @property
    def num_reusable(self) -> int:
        """Number of known tokens whose K/V may be reused from a cache.

        A cache stores no logits. Logits are needed for the last known token, to sample the next token, and for each
        prompt token whose successor's log-probability is requested.
        """
        return (self.num_prompt_logprobs_sent if self.needs_prompt_logprobs else len(self.known)) - 1

    @property
    def num_private(self) -> int:
        """Number of private pages."""
        return len(self.pages) - self.num_shared

    @property
    def is_decoding(self) -> bool:
        """True if its next item computes one token: every earlier token is computed or in flight."""
        return self.computed == len(self.known) + self.samples_in_flight - 1

    @property
    def final_token_in_flight(self) -> bool:
        """True if the steps in flight are certain to complete the request."""
        num_outputs = self.num_outputs + self.samples_in_flight
        return num_outputs >= self.sampling.max_tokens and self.computed >= self.prompt_len

    @property
    def awaits_result(self) -> bool:
        """True if no further item can be planned before the results in flight have been collected.

        This is so if a result in flight is the last one, if it determines which tokens the grammar allows next, or if
        it may have several tokens, so that the position of the next item is unknown.
        """
        return self.samples_in_flight > 0 and (bool(self.grammar) or self.max_samples > 1 or self.final_token_in_flight)

    @property
    def num_samples(self) -> int:
        """The maximum number of tokens that the next decode item may yield; at least 1."""
        return max(min(self.max_samples, self.sampling.max_tokens - self.num_outputs), 1)

    def clear_kv_state(self) -> None:
        """Reset every field that describes KV memory."""
        self.computed = self.num_confirmed = self.sent_pages = self.sent_elsewhere = self.num_shared = 0
        self.node = None
        self.row_ready = False
        self.pages = []

    def reset_for_retract(self, *, max_retractions: int) -> None:
        """Reset the request to a state in which nothing is computed, and count the retraction.

        The known tokens and the parameters are kept; all other state is derived from them.
        """
        self.clear_kv_state()
        self.is_retracted = True
        self.history.retraction_count += 1
        self.history.retracted_stain = True
        self.protected = self.protected or 0 <= max_retractions <= self.history.retraction_count
