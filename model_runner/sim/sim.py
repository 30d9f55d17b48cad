"""The simulated runner: has no model, but reads its context through the page table.

Every pool slot stores a hash of token and position. A sample is a function of all slots that the page table leads to:
a page that was freed too early, shared wrongly, published before it was computed or not sent again changes the text.
Plans run in order when they are collected. Imports no torch.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ebbtide.config import RunnerConfig
from ebbtide.errors import PlanError
from ebbtide.messages import RunnerInfo, TokenLogprob
from ebbtide.plan import PageCopies, PlanItem, PromptLogprobSpec, StepPlan, StepResult
from ebbtide.tokenization.vocabulary import SIM_EOS, SIM_VOCAB_SIZE

from ..kv.page_copies import checked_moves
from .sim_sampling import NO_TOKEN, SimRow, choose, logprob_of
from .sim_script import SimScript

Slots = NDArray[np.uint64]

CONTEXT_LENGTH = 32_768
POOL_TOKENS = 65_536
POISON = np.uint64(0xDEAD_BEEF_DEAD_BEEF)
HOST_TOKEN_BYTES = 64 << 10  # a token's share of --kv-offload-gb: 1 GiB holds 16,384
# Arbitrary, because nothing is computed or copied; restoring is cheaper, as on real devices.
RECOMPUTE_TOKEN_S = 100e-6
RESTORE_TOKEN_S = 10e-6
TOKEN_BITS = 9  # enough for the vocabulary, so that a slot also contains its token


@dataclass(frozen=True, slots=True)
class SimShape:
    """The sizes of a simulated runner; tokens and pages as in ``RunnerInfo``."""

    num_pages: int
    page_size: int
    num_rows: int
    context_length: int = CONTEXT_LENGTH
    max_in_flight: int = 2
    num_host_pages: int = 0


class SimRunner:
    """A ``Runner`` that stores token ids in place of K/V."""

    def __init__(self, shape: SimShape, *, step_s: float = 0.0, script: SimScript | None = None) -> None:
        self.info = RunnerInfo(
            context_length=shape.context_length,
            vocab_size=SIM_VOCAB_SIZE,
            num_pages=shape.num_pages,
            page_size=shape.page_size,
            num_rows=shape.num_rows,
            eos_token_ids=(SIM_EOS,),
            device="none",
            dtype="none",
            attention="sim",
            max_in_flight=shape.max_in_flight,
            num_host_pages=shape.num_host_pages,
            recompute_token_s=RECOMPUTE_TOKEN_S if shape.num_host_pages else 0.0,
            restore_token_s=RESTORE_TOKEN_S if shape.num_host_pages else 0.0,
        )
        self._step_s = step_s
        self._script = script or SimScript({})
        self._slots: Slots = np.full((shape.num_pages, shape.page_size), POISON, dtype=np.uint64)
        self._host: Slots = np.full((shape.num_host_pages, shape.page_size), POISON, dtype=np.uint64)
        max_pages = -(-shape.context_length // shape.page_size)
        # One weight per position, so that the right pages in the wrong order change the hash.
        self._weights: Slots = np.arange(max_pages * shape.page_size, dtype=np.uint64) * np.uint64(2) + np.uint64(1)
        self._table = np.full((shape.num_rows, max_pages), -1, dtype=np.int64)
        self._rows: list[SimRow | None] = [None] * shape.num_rows
        self._queue: deque[StepPlan | tuple[Slots, list[int]]] = deque()

    @classmethod
    def from_config(cls, config: RunnerConfig) -> SimRunner:
        """The runner behind ``MODEL sim``: context 32,768, pool 65,536 tokens unless the flags set others.

        The host tier holds as many tokens as ``kv_offload_gb`` GiB would at 64 KiB a token.
        """
        shape = SimShape(
            num_pages=(config.max_total_tokens or POOL_TOKENS) // config.page_size,
            page_size=config.page_size,
            num_rows=config.max_running_requests,
            context_length=config.context_length or CONTEXT_LENGTH,
            num_host_pages=int(config.kv_offload_gb * (1 << 30) / HOST_TOKEN_BYTES) // config.page_size,
        )
        script = SimScript.load(config.sim_script) if config.sim_script else None
        return cls(shape, step_s=config.sim_step_ms / 1000, script=script)

    def submit(self, plan: StepPlan) -> None:
        """See ``Runner``."""
        self._queue.append(plan)

    def poison(self, pages: Sequence[int]) -> None:
        """Overwrite freed pages after the plans submitted so far: they must not be read again."""
        self._queue.append((self._slots, list(pages)))

    def poison_host(self, pages: Sequence[int]) -> None:
        """Overwrite freed host pages after the plans submitted so far."""
        self._queue.append((self._host, list(pages)))

    def collect(self) -> StepResult:
        """See ``Runner``."""
        while True:
            entry = self._queue.popleft()
            if isinstance(entry, StepPlan):
                break
            slots, pages = entry
            slots[pages] = POISON
        if self._step_s:
            time.sleep(self._step_s)
        return self._execute(entry)

    def _execute(self, plan: StepPlan) -> StepResult:
        if plan.copies is not None:
            self._copy(plan.copies)
        for item in plan.items:
            self._prepare(item)
        self._write(plan.items)
        sampling = [item for item in plan.items if item.num_samples]
        tokens: list[list[int]] = []
        logprobs: list[list[TokenLogprob] | None] = []
        for item, context in zip(sampling, self._contexts(sampling), strict=True):
            row = self._rows[item.row]
            assert row is not None
            token, logprob = choose(row, context, item.end - row.prompt_len, item.mask)
            row.last = token
            tokens.append([] if token == NO_TOKEN else [token])
            logprobs.append(None if logprob is None else [logprob])
        prompt_logprobs = [
            self._prompt_logprobs(item, item.prompt_logprobs) for item in plan.items if item.prompt_logprobs is not None
        ]
        return StepResult(plan.number, tokens, logprobs if any(logprobs) else None, prompt_logprobs)

    def _copy(self, copies: PageCopies) -> None:
        moves = checked_moves(copies, num_pages=self.info.num_pages, num_host_pages=self.info.num_host_pages)
        self._host[moves.to_host.targets] = self._slots[moves.to_host.sources]
        self._slots[moves.to_device.targets] = self._host[moves.to_device.sources]

    def _prepare(self, item: PlanItem) -> None:
        """Check one item against row, table and pool; apply its page-table writes."""
        if not 0 <= item.row < len(self._rows):
            raise PlanError(f"row {item.row} is not one of {len(self._rows)}")
        if item.pages:
            end = item.page_index + len(item.pages)
            if end > self._table.shape[1] or not 0 <= min(item.pages) <= max(item.pages) < len(self._slots):
                raise PlanError(f"row {item.row}: pages {item.pages[:4]} … at {item.page_index} reach outside")
            self._table[item.row, item.page_index : end] = item.pages
        if item.init is not None:
            self._table[item.row, item.page_index + len(item.pages) :] = -1
            self._rows[item.row] = SimRow.of(item.init)
        last_page = (item.end - 1) // self.info.page_size
        if last_page >= self._table.shape[1] or self._table[item.row, last_page] < 0 or self._rows[item.row] is None:
            raise PlanError(f"row {item.row}: position {item.end - 1} has no page")

    def _write(self, items: Sequence[PlanItem]) -> None:
        """Store all items' tokens. Rows write to different pages, so the order of items does not matter."""
        rows: list[int] = []
        positions: list[int] = []
        tokens: list[int] = []
        for item in items:
            row = self._rows[item.row]
            assert row is not None
            ids = [row.last] if item.tokens is None else item.tokens
            tokens += ids
            rows += [item.row] * len(ids)
            positions += range(item.start, item.start + len(ids))
        where = np.array(positions, dtype=np.int64)
        pages = self._table[np.array(rows, dtype=np.int64), where // self.info.page_size]
        self._slots[pages, where % self.info.page_size] = slot_value(np.array(tokens, dtype=np.uint64), where)

    def _contexts(self, items: Sequence[PlanItem]) -> list[int]:
        """One hash per item over the slots of its row, up to and including the item's last token."""
        contexts: list[int] = []
        for item in items:
            slots = self._read(item)
            row = self._rows[item.row]
            assert row is not None
            if self._script and row.script is None:
                row.script = self._script.output_for(
                    (slots[: row.prompt_len] & np.uint64((1 << TOKEN_BITS) - 1)).tolist()
                )
            contexts.append(int(np.add.reduce(slots * self._weights[: item.end])))
        return contexts

    def _prompt_logprobs(self, item: PlanItem, spec: PromptLogprobSpec) -> list[TokenLogprob]:
        """The log-probability of each target, given the same context that sampling it would use."""
        first = item.start + spec.first
        contexts = np.cumsum(self._read(item) * self._weights[: item.end], dtype=np.uint64)
        wanted = contexts[first : first + len(spec.targets)].tolist()
        return [logprob_of(*pair, spec.num_top) for pair in zip(wanted, spec.targets, strict=True)]

    def _read(self, item: PlanItem) -> Slots:
        """The slots of the item's row, up to and including the item's last token."""
        return self._slots[self._table[item.row, : -(-item.end // self.info.page_size)]].reshape(-1)[: item.end]


def slot_value(tokens: Slots, positions: NDArray[np.int64]) -> Slots:
    """The 64-bit slot of a token at a position: a hash in the high bits, the token itself in the low bits."""
    mixed = (tokens + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15) + positions.astype(np.uint64) * np.uint64(
        0xD1B54A32D192ED03
    )
    mixed ^= mixed >> np.uint64(29)
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= mixed >> np.uint64(32)
    return (mixed << np.uint64(TOKEN_BITS)) | tokens
