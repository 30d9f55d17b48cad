"""The step plan: the complete protocol between the scheduler and a model runner.

Plans are idempotent and complete: there are no finish, resume or free messages. The first item of every admission
carries the complete state of its row, so nothing remains from the row's previous request.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from .messages import Part, RunnerInfo, SamplingParams, TokenLogprob


class RowInit(Part, frozen=True):
    """The complete sampling state of a row; the runner rebuilds the row from it.

    Attributes:
        prompt_len: prompt tokens; the sample after position p is output token ``p + 1 - prompt_len``.
        known: token ids of prompt and outputs so far, including cached ones; empty if no penalty needs them.
    """

    sampling: SamplingParams
    prompt_len: int
    known: list[int] = msgspec.field(default_factory=list)


class PromptLogprobSpec(Part, frozen=True):
    """A request for the log-probabilities of known tokens.

    Attributes:
        first: index within the item's tokens; target i follows the item's token ``first + i``.
        targets: token ids.
        num_top: how many of the most likely tokens to return with each target.
    """

    first: int
    targets: list[int]
    num_top: int


class PageWrite(Part, frozen=True):
    """The pages of one row in a pool other than the first one.

    Attributes:
        pool: index in ``RunnerInfo.pools``.
        pages: page numbers to write into the row's page table of that pool from ``page_index`` on, before computing.
    """

    pool: int
    page_index: int
    pages: list[int]


class PlanItem(Part, frozen=True):
    """The tokens of one row that a step computes.

    Attributes:
        start: position of the first token.
        tokens: token ids; None for one token, which is the row's last sample.
        pages: page numbers to write into the row's page table of the first pool from ``page_index`` on, before
            computing.
        num_samples: maximum number of tokens to sample after the last one; 0 for none. If it is more than one, the
            item's pages must hold the K/V of all samples except the last, and the row must have no later item in
            flight.
        init: set only on the first item of an admission.
        mask: tokens that may be sampled, one bit per token id, least significant bit first; b"" for all. An item with a
            mask samples one token. If a row's mask depends on a token that is not collected yet, the plan has no item
            for the row.
        prompt_logprobs: tokens whose log-probabilities this item must return.
        more_pages: the same as ``pages`` for the other pools; at most one entry per pool.
        embeds: True if the item must return the normalized hidden state of its last token.
    """

    row: int
    start: int
    tokens: list[int] | None
    pages: list[int] = msgspec.field(default_factory=list)
    page_index: int = 0
    num_samples: int = 1
    init: RowInit | None = None
    mask: bytes = b""
    prompt_logprobs: PromptLogprobSpec | None = None
    more_pages: tuple[PageWrite, ...] = ()
    embeds: bool = False

    @property
    def end(self) -> int:
        """The position after the last token."""
        return self.start + (1 if self.tokens is None else len(self.tokens))

    def write_to(self, pool: int) -> tuple[int, list[int]]:
        """Return the page index and the pages to write into the row's page table of pool number ``pool``."""
        if pool == 0:
            return self.page_index, self.pages
        return next(((write.page_index, write.pages) for write in self.more_pages if write.pool == pool), (0, []))


class PageCopies(Part, frozen=True):
    """Whole pages of KV to copy before the step writes any KV: first all to the host, then all to the device.

    Attributes:
        to_host: flattened pairs [device page, host page, …].
        to_device: flattened pairs [host page, device page, …].
    """

    to_host: list[int] = msgspec.field(default_factory=list)
    to_device: list[int] = msgspec.field(default_factory=list)


class StepPlan(Part, frozen=True):
    """One forward pass.

    Attributes:
        number: sequence number.
        items: decode items, then prefill chunks, at most one per row; empty if the plan only copies pages.
        copies: page copies to run first.
        num_token_ids: ids from this one on are rows of the embedding without a token: they may be in ``tokens``, but
            are never sampled. The value is 0 if every id has a token.
    """

    number: int
    items: list[PlanItem]
    copies: PageCopies | None = None
    num_token_ids: int = 0


class ItemFailure(Part, frozen=True):
    """An item that yields nothing, because of its own inputs or logits. The other items are computed as usual.

    Attributes:
        item: index in ``StepPlan.items``.
        problem: description for the log.
        invalid_logits: True if the logits leave no token to sample; otherwise an exception was raised.
    """

    item: int
    problem: str
    invalid_logits: bool = False


class StepResult(Part, frozen=True):
    """The result of one plan.

    Attributes:
        tokens: one list per sampling item, in plan order, of 1 to ``PlanItem.num_samples`` token ids; an empty list if
            the item's mask allows no token or the item failed.
        logprobs: parallel to ``tokens``, for each item one per token; None for an item that did not ask for
            log-probabilities, or in place of the whole list if no item did.
        prompt_logprobs: one list per item with ``PlanItem.prompt_logprobs``, in plan order, parallel to its targets;
            empty if the item failed.
        embeddings: one vector per item with ``PlanItem.embeds``, in plan order, little-endian float32; b"" if the item
            failed.
        failures: at most one per item. A failed item's row is not used again before an item with ``init``.
    """

    number: int
    tokens: list[list[int]]
    logprobs: list[list[TokenLogprob] | None] | None = None
    prompt_logprobs: list[list[TokenLogprob]] = msgspec.field(default_factory=list)
    failures: list[ItemFailure] = msgspec.field(default_factory=list)
    embeddings: list[bytes] = msgspec.field(default_factory=list)


class Runner(Protocol):
    """Executes plans in order. At most ``info.max_in_flight`` submitted plans may be uncollected.

    An exception that the inputs of one row cause is a failure of its item. An error of a plan as a whole, or of the
    device, is raised.
    """

    @property
    def info(self) -> RunnerInfo: ...

    def submit(self, plan: StepPlan) -> None:
        """Start a plan. The method returns after reading the plan's inputs, before the plan has been computed."""

    def collect(self) -> StepResult:
        """Wait for the oldest plan in flight and return its result."""
