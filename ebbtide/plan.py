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
        prompt_len: number of prompt tokens; the sample after position p is output token ``p + 1 - prompt_len``.
        known: token ids of the prompt and the outputs so far, including tokens whose K/V is cached; empty if no penalty
            needs them.
    """

    sampling: SamplingParams
    prompt_len: int
    known: list[int] = msgspec.field(default_factory=list)


class PromptLogprobSpec(Part, frozen=True):
    """A request for the log-probabilities of known tokens.

    Attributes:
        first: index in the item's tokens; target i follows the item's token ``first + i``.
        targets: ids of the tokens whose log-probabilities are requested.
        num_top: number of most likely tokens to return with each target.
    """

    first: int
    targets: list[int]
    num_top: int


class PageWrite(Part, frozen=True):
    """The pages of one row in a pool other than the first one.

    Attributes:
        pool: index in ``RunnerInfo.pools``.
        page_index: index in the row's page table of that pool of the first entry to write.
        pages: page numbers to write there before the step computes.
    """

    pool: int
    page_index: int
    pages: list[int]


class StateCopies(Part, frozen=True):
    """Copies of recurrent states for one item, between slots of ``MAMBA_POOL``.

    A runner reads the sources of all items of a plan before it writes to any slot.

    Attributes:
        load: slot whose state the row continues from; -1 for the state before the first token; None for the state that
            the row's previous item left in its slot.
        save: slot that gets a copy of the state after the item's last token; None for no copy.
    """

    load: int | None = None
    save: int | None = None


class PlanItem(Part, frozen=True):
    """The tokens of one row that a step computes.

    Attributes:
        start: position of the first token.
        tokens: token ids; None for one token, which is the row's last sample.
        pages: page numbers to write into the row's page table of the first pool before the step computes.
        page_index: index in the page table of the first entry to write.
        num_samples: maximum number of tokens to sample after the last one; 0 for none. If it is more than one, the
            item's pages must hold the K/V of all samples except the last, and the row must have no later item in
            flight.
        init: state of the row; set only on the first item after an admission.
        mask: tokens that may be sampled, one bit per token id, least significant bit first; b"" for all. An item with a
            mask samples one token. If a row's mask depends on a token that has not been collected yet, the plan has no
            item for the row.
        prompt_logprobs: known tokens whose log-probabilities the runner must return; None for none.
        more_pages: ``pages`` and ``page_index`` for the other pools; at most one entry per pool.
        embeds: True if the item must return the normalized hidden state of its last token.
        states: copies of the row's recurrent state; None for none. The row's slot is its only page in ``MAMBA_POOL``.
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
    states: StateCopies | None = None

    @property
    def end(self) -> int:
        """The position after the last token."""
        return self.start + (1 if self.tokens is None else len(self.tokens))

    def writes_to(self, pool: int) -> bool:
        """True if the item writes to the row's page table of pool number ``pool``, which is not the first one."""
        return any(write.pool == pool for write in self.more_pages)

    def write_to(self, pool: int) -> tuple[int, list[int]]:
        """Return the page index and the pages to write into the row's page table of pool number ``pool``."""
        if pool == 0:
            return self.page_index, self.pages
        return next(((write.page_index, write.pages) for write in self.more_pages if write.pool == pool), (0, []))


class PoolCopies(Part, frozen=True):
    """Like ``PageCopies``, for one pool other than the first one. Each pool has its own host pages.

    Attributes:
        pool: index in ``RunnerInfo.pools``.
    """

    pool: int
    to_host: list[int]
    to_device: list[int]


class PageCopies(Part, frozen=True):
    """Whole pages of KV to copy before the step writes any KV: first all to the host, then all to the device.

    Attributes:
        to_host: flattened pairs [device page, host page, …] of the first pool.
        to_device: flattened pairs [host page, device page, …] of the first pool.
        more_pools: the copies of the other pools; at most one entry per pool.
    """

    to_host: list[int] = msgspec.field(default_factory=list)
    to_device: list[int] = msgspec.field(default_factory=list)
    more_pools: tuple[PoolCopies, ...] = ()


class StepPlan(Part, frozen=True):
    """The work of one step: page copies and one forward pass.

    Attributes:
        number: sequence number.
        items: decode items, then prefill chunks, at most one per row; empty if the plan only copies pages.
        copies: page copies to run first; None for none.
        num_token_ids: number of ids that have a token. Higher ids, which are rows of the embedding without a token, may
            be in ``tokens`` but are never sampled. 0 if every id has a token.
    """

    number: int
    items: list[PlanItem]
    copies: PageCopies | None = None
    num_token_ids: int = 0


class ItemFailure(Part, frozen=True):
    """An item without a result because of its own inputs or logits. The other items are computed as usual.

    Attributes:
        item: index in ``StepPlan.items``.
        problem: description of the failure, for the log.
        invalid_logits: True if the logits leave no token to sample; False if an exception was raised.
    """

    item: int
    problem: str
    invalid_logits: bool = False


class StepResult(Part, frozen=True):
    """The result of one plan.

    Attributes:
        tokens: one list per sampling item, in plan order, of 1 to ``PlanItem.num_samples`` token ids; an empty list if
            the item's mask allows no token or the item failed.
        logprobs: parallel to ``tokens``: for each item, one log-probability per token, or None if the item's row did
            not request them. None in place of the whole list if no row requested them.
        prompt_logprobs: one list per item with ``PlanItem.prompt_logprobs``, in plan order, parallel to its targets;
            empty if the item failed.
        embeddings: one vector per item with ``PlanItem.embeds``, in plan order, little-endian float32; b"" if the item
            failed.
        failures: at most one per item. After a failure, the next item of the row must have ``init``.
    """

    number: int
    tokens: list[list[int]]
    logprobs: list[list[TokenLogprob] | None] | None = None
    prompt_logprobs: list[list[TokenLogprob]] = msgspec.field(default_factory=list)
    failures: list[ItemFailure] = msgspec.field(default_factory=list)
    embeddings: list[bytes] = msgspec.field(default_factory=list)


class Runner(Protocol):
    """Executes plans in order. At most ``info.max_in_flight`` submitted plans may be uncollected.

    If the inputs of one row cause an exception, its item becomes an ``ItemFailure``. An error of a plan as a whole, or
    of the device, is raised.
    """

    @property
    def info(self) -> RunnerInfo: ...

    def submit(self, plan: StepPlan) -> None:
        """Start a plan. The method returns after reading the plan's inputs, before the plan has been computed."""

    def collect(self) -> StepResult:
        """Wait for the oldest plan in flight and return its result."""
