"""The step plan: the whole protocol between the scheduler and a model runner.

A plan is idempotent and complete: there is no finish, resume or free message. Whatever a row needs from its first step
on travels with the first item of every admission, so nothing survives from the row's last tenant.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from .messages import Part, RunnerInfo, SamplingParams, TokenLogprob


class RowInit(Part, frozen=True):
    """The sampling state of a row in full; the runner rebuilds the row from it.

    prompt_len: tokens; the sample that follows position p is output token ``p + 1 - prompt_len``.
    known: prompt and outputs so far, cached ones too; empty when no penalty needs them.
    """

    sampling: SamplingParams
    prompt_len: int
    known: list[int] = msgspec.field(default_factory=list)


class PromptLogprobSpec(Part, frozen=True):
    """Asks for the log-probabilities of known tokens.

    Attributes:
        first: index within the item's tokens; target i follows the item's token ``first + i``.
        targets: token ids.
        num_top: how many of the most likely tokens to return with each target.
    """

    first: int
    targets: list[int]
    num_top: int


class PlanItem(Part, frozen=True):
    """Some tokens of one row.

    start: position of the first token. tokens: their ids, or None for "one token: your own last sample".
    pages: before computing, write these page numbers into the row's page table from ``page_index`` on.
    samples: whether the last token's logits are sampled. init: only on the first item of an admission.
    mask: b"" for none, else one bit a token id, least significant bit first: the ids that may be sampled. A row whose
    mask depends on a token that is not collected yet has no item in the plan.
    prompt_logprobs: the tokens whose log-probabilities this item must return.
    """

    row: int
    start: int
    tokens: list[int] | None
    pages: list[int] = msgspec.field(default_factory=list)
    page_index: int = 0
    samples: bool = True
    init: RowInit | None = None
    mask: bytes = b""
    prompt_logprobs: PromptLogprobSpec | None = None

    @property
    def end(self) -> int:
        """Position after the last token."""
        return self.start + (1 if self.tokens is None else len(self.tokens))


class PageCopies(Part, frozen=True):
    """K/V of whole pages to move before anything of the step is written: first all to the host, then all back.

    Each list is pairs flattened: to_host [device page, host page, …], to_device [host page, device page, …].
    """

    to_host: list[int] = msgspec.field(default_factory=list)
    to_device: list[int] = msgspec.field(default_factory=list)


class StepPlan(Part, frozen=True):
    """One forward: page copies, then decode items, then prefill chunks. At most one item a row.

    A plan may have no items when it only copies.
    """

    number: int
    items: list[PlanItem]
    copies: PageCopies | None = None


class StepResult(Part, frozen=True):
    """What one plan produced.

    Attributes:
        tokens: one per sampling item, in plan order; -1 if the item's mask allows no token.
        logprobs: parallel to ``tokens``; None if no row asked for log-probabilities.
        prompt_logprobs: one list per item with ``PlanItem.prompt_logprobs``, in plan order, parallel to its targets.
    """

    number: int
    tokens: list[int]
    logprobs: list[TokenLogprob | None] | None = None
    prompt_logprobs: list[list[TokenLogprob]] = msgspec.field(default_factory=list)


class Runner(Protocol):
    """Carries out plans in order. At most ``info.max_in_flight`` plans may be uncollected."""

    @property
    def info(self) -> RunnerInfo: ...

    def submit(self, plan: StepPlan) -> None:
        """Start a plan; returns when its inputs are read, not when it is computed."""

    def collect(self) -> StepResult:
        """The result of the oldest uncollected plan; waits for it."""
