"""The simulated runner. It has no model, but reads its context through the page table.

Every pool slot stores a hash of a token and its position. A sample depends on all slots to which the page tables refer.
A page that was freed too early, shared wrongly, published before it was computed or not sent again therefore changes
the text. Plans run in order of submission, each when its result is collected. The module does not import torch.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from ebbtide.config import RunnerConfig
from ebbtide.errors import PlanError, StartupError
from ebbtide.messages import FULL_POOL, MAMBA_POOL, PoolInfo, RunnerInfo, TokenLogprob
from ebbtide.plan import ItemFailure, PageCopies, PlanItem, PoolCopies, PromptLogprobSpec, StepPlan, StepResult
from ebbtide.step_cost import StepCost
from ebbtide.tokenization.vocabulary import SIM_EOS, SIM_VOCAB_SIZE

from ..isolation import compute_isolated
from ..kv.page_copies import checked_moves
from .sim_embedding import embedding_of
from .sim_layout import further_pools
from .sim_pool import POISON, TOKEN_BITS, SimPool, Slots, slot_value
from .sim_sampling import INVALID_LOGITS, NO_TOKEN, SimRow, choose, logprob_of
from .sim_script import SimScript
from .sim_states import SimStates
from .sim_timer import StepTimer

CONTEXT_LENGTH = 32_768
POOL_TOKENS = 65_536
HOST_TOKEN_BYTES = 64 << 10  # assumed bytes of KV per token for --kv-offload-gb: 1 GiB holds 16,384 tokens
# Arbitrary costs, because nothing is computed or copied. Restoring is cheaper than recomputing, as on real devices.
RECOMPUTE_TOKEN_S = 100e-6
RESTORE_TOKEN_S = 10e-6
MAX_CONTEXT = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class SimShape:
    """The sizes of a simulated runner, as in ``RunnerInfo``.

    Attributes:
        more_pools: all pools except the first.
    """

    num_pages: int
    page_size: int
    num_rows: int
    context_length: int = CONTEXT_LENGTH
    max_in_flight: int = 2
    num_host_pages: int = 0
    more_pools: tuple[PoolInfo, ...] = ()
    more_host_pages: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class SimItemResult:
    """The result of one item.

    Attributes:
        token: the sampled token; NO_TOKEN if there is none, INVALID_LOGITS if the logits are invalid.
    """

    token: int
    logprob: TokenLogprob | None
    prompt_logprobs: list[TokenLogprob]
    embedding: bytes = b""

    @property
    def has_invalid_logits(self) -> bool:
        """True if some logits of the item are NaN."""
        return self.token == INVALID_LOGITS or any(math.isnan(entry.logprob) for entry in self.prompt_logprobs)


class SimRunner:
    """A ``Runner`` that stores hashes of tokens in place of K/V."""

    def __init__(self, shape: SimShape, *, cost: StepCost | None = None, script: SimScript | None = None) -> None:
        pools = (PoolInfo(shape.num_pages, shape.page_size), *shape.more_pools)
        self.info = RunnerInfo(
            context_length=shape.context_length,
            vocab_size=SIM_VOCAB_SIZE,
            pools=pools,
            num_rows=shape.num_rows,
            eos_token_ids=(SIM_EOS,),
            device="none",
            dtype="none",
            attention="sim",
            deterministic=True,
            max_in_flight=shape.max_in_flight,
            num_host_pages=shape.num_host_pages,
            more_host_pages=shape.more_host_pages,
            recompute_token_s=RECOMPUTE_TOKEN_S if shape.num_host_pages else 0.0,
            restore_token_s=RESTORE_TOKEN_S if shape.num_host_pages else 0.0,
        )
        self._timer = None if cost is None else StepTimer(cost)
        self._script = script or SimScript({})
        self._pools = [
            SimPool(pool, number, num_rows=shape.num_rows, context_length=shape.context_length)
            for number, pool in enumerate(pools)
            if pool.name != MAMBA_POOL
        ]
        self._states = [
            SimStates(pool, number, num_rows=shape.num_rows, max_tokens=shape.context_length)
            for number, pool in enumerate(pools)
            if pool.name == MAMBA_POOL
        ]
        self._host: list[Slots] = [
            np.full((num_pages, pool.page_size), POISON, dtype=np.uint64)
            for pool, num_pages in zip(pools, (shape.num_host_pages, *shape.more_host_pages), strict=False)
        ]
        self._rows: list[SimRow | None] = [None] * shape.num_rows
        self._queue: deque[StepPlan | tuple[Slots, list[int]]] = deque()

    @classmethod
    def from_config(cls, config: RunnerConfig) -> SimRunner:
        """Return the runner for ``MODEL sim``. By default, the context has 32,768 tokens and the pool 65,536.

        In the first pool, the host tier holds ``kv_offload_gb`` GiB at 64 KiB per token. The ratio of its pages in
        another pool to its pages in the first pool is that of the device's pages.
        Raises StartupError if the runner does not fit into memory, or if ``sim_pools`` is invalid.
        """
        num_pages = (config.max_total_tokens or POOL_TOKENS) // config.tokens_per_page
        context_length = config.context_length or CONTEXT_LENGTH
        first = PoolInfo(num_pages, config.tokens_per_page, FULL_POOL)
        more_pools = further_pools(config.sim_pools, first, config.swa_full_tokens_ratio, context_length)
        num_host_pages = int(config.kv_offload_gb * (1 << 30) / HOST_TOKEN_BYTES) // config.tokens_per_page
        shape = SimShape(
            num_pages=num_pages,
            page_size=config.tokens_per_page,
            num_rows=config.max_running_requests,
            max_in_flight=1 if config.disable_overlap_schedule else 2,
            context_length=context_length,
            num_host_pages=num_host_pages,
            more_pools=more_pools,
            more_host_pages=tuple(-(-num_host_pages * pool.num_pages // num_pages) for pool in more_pools),
        )
        script = SimScript.load(config.sim_script) if config.sim_script else None
        try:
            return cls(shape, cost=_step_cost(config), script=script)
        except MemoryError as error:
            raise StartupError(
                "The simulated model does not fit into memory: choose smaller numbers for --max-running-requests, "
                "--context-length, --max-total-tokens and --kv-offload-gb."
            ) from error

    def submit(self, plan: StepPlan) -> None:
        """See ``Runner``."""
        self._queue.append(plan)
        if self._timer is not None:
            self._timer.submitted(plan)

    def poison(self, pages: Sequence[int], *, pool: int = 0) -> None:
        """Overwrite freed pages of a pool after the plans submitted so far, so that a later read changes the text."""
        slots = [*(kv.slots for kv in self._pools), *(states.slots for states in self._states)]
        self._queue.append((slots[pool], list(pages)))

    def poison_host(self, pages: Sequence[int], *, pool: int = 0) -> None:
        """Overwrite freed host pages of a pool after the plans submitted so far."""
        self._queue.append((self._host[pool], list(pages)))

    def collect(self) -> StepResult:
        """See ``Runner``."""
        while True:
            entry = self._queue.popleft()
            if isinstance(entry, StepPlan):
                break
            slots, pages = entry
            slots[pages] = POISON
        result = self._execute(entry)
        if self._timer is not None:
            self._timer.wait()
        return result

    def _execute(self, plan: StepPlan) -> StepResult:
        if plan.copies is not None:
            self._copy(plan.copies)
        compute = partial(self._compute, num_ids=plan.num_token_ids)
        parts, failures = compute_isolated(plan.items, compute) if plan.items else ([], [])
        results = {number: one for part in parts for number, one in zip(part.numbers, part.value, strict=True)}
        invalid = [number for number, one in results.items() if one.has_invalid_logits]
        failures += [ItemFailure(number, "the logits are nan", invalid_logits=True) for number in invalid]
        empty = SimItemResult(NO_TOKEN, None, [])
        found = {number: one for number, one in results.items() if not one.has_invalid_logits}
        items = [(item, found.get(number, empty)) for number, item in enumerate(plan.items)]
        sampled = [one for item, one in items if item.num_samples]
        logprobs = [None if one.logprob is None else [one.logprob] for one in sampled]
        return StepResult(
            plan.number,
            [[] if one.token == NO_TOKEN else [one.token] for one in sampled],
            logprobs if any(logprobs) else None,
            [one.prompt_logprobs for item, one in items if item.prompt_logprobs is not None],
            failures,
            [one.embedding for item, one in items if item.embeds],
        )

    def _compute(self, items: list[PlanItem], *, num_ids: int) -> list[SimItemResult]:
        """Compute the result of each item. After an exception, it can be repeated with some of the items."""
        for item in items:
            self._prepare(item)
        self._write(items)
        contexts = self._contexts(items)
        results = [self._item_result(item, context, num_ids) for item, context in zip(items, contexts, strict=True)]
        for item, result in zip(items, results, strict=True):
            if item.num_samples:
                self._row(item).note(max(result.token, 0))  # a step in flight may read this sample
        for states in self._states:
            states.commit(items)
        return results

    def _item_result(self, item: PlanItem, context: int, num_ids: int) -> SimItemResult:
        spec = item.prompt_logprobs
        prompt_logprobs = [] if spec is None else self._prompt_logprobs(item, spec)
        if not item.num_samples:
            return SimItemResult(NO_TOKEN, None, prompt_logprobs, embedding_of(context) if item.embeds else b"")
        row = self._row(item)
        token, logprob = choose(row, context, item.end - row.prompt_len, item.mask, num_ids)
        return SimItemResult(token, logprob, prompt_logprobs)

    def _row(self, item: PlanItem) -> SimRow:
        row = self._rows[item.row]
        assert row is not None
        return row

    def _copy(self, copies: PageCopies) -> None:
        self._copy_in(0, copies)
        for part in copies.more_pools:
            if not 0 < part.pool < len(self._host):
                raise PlanError(f"pool {part.pool} has no host pages to copy to or from")
            self._copy_in(part.pool, part)

    def _copy_in(self, number: int, copies: PageCopies | PoolCopies) -> None:
        """Copy pages of the pool with index ``number`` to and from the host."""
        host, slots = self._host[number], self._pools[number].slots
        moves = checked_moves(copies, num_pages=len(slots), num_host_pages=len(host))
        host[moves.to_host.targets] = slots[moves.to_host.sources]
        slots[moves.to_device.targets] = host[moves.to_device.sources]

    def _prepare(self, item: PlanItem) -> None:
        """Check one item and apply its page-table writes. Raises PlanError if the item is invalid."""
        if not 0 <= item.row < len(self._rows):
            raise PlanError(f"row {item.row} is not one of {len(self._rows)}")
        if item.init is not None:
            self._rows[item.row] = SimRow.of(item.init)
        for pool in self._pools:
            pool.prepare(item)
        for states in self._states:
            states.prepare(item)
        if self._rows[item.row] is None:
            raise PlanError(f"row {item.row} has no sampling state")

    def _write(self, items: Sequence[PlanItem]) -> None:
        """Store the slots of all items' tokens. The order does not matter, because rows write to different pages."""
        rows: list[int] = []
        positions: list[int] = []
        tokens: list[int] = []
        for item in items:
            ids = [self._row(item).last] if item.tokens is None else item.tokens
            tokens += ids
            rows += [item.row] * len(ids)
            positions += range(item.start, item.start + len(ids))
        where = np.array(positions, dtype=np.int64)
        values = slot_value(np.array(tokens, dtype=np.uint64), where)
        for pool in self._pools:
            pool.write(np.array(rows, dtype=np.int64), where, values)
        for states in self._states:
            first = 0
            for item in items:
                count = item.end - item.start
                states.begin(item, values[first : first + count])
                first += count

    def _contexts(self, items: Sequence[PlanItem]) -> list[int]:
        """Return one hash per item over the slots that its last token reads; 0 if it neither samples nor embeds."""
        contexts: list[int] = []
        for item in items:
            if not (item.num_samples or item.embeds):
                contexts.append(0)
                continue
            row = self._row(item)
            if self._script and row.script is None and item.num_samples:
                prompt = self._pools[0].read(item.row, 0, row.prompt_len)
                row.script = self._script.output_for((prompt & np.uint64((1 << TOKEN_BITS) - 1)).tolist())
            context = sum(pool.context(item.row, item.end) for pool in self._pools)
            contexts.append((context + sum(states.context(item.row) for states in self._states)) & MAX_CONTEXT)
        return contexts

    def _prompt_logprobs(self, item: PlanItem, spec: PromptLogprobSpec) -> list[TokenLogprob]:
        """Return the log-probability of each target token given the preceding tokens."""
        first = item.start + spec.first
        end = min(first + len(spec.targets), item.end)
        contexts = np.stack(
            [pool.contexts(item.row, first, end) for pool in self._pools]
            + [states.contexts(item.row, first - item.start, end - item.start) for states in self._states]
        )
        wanted: list[int] = np.add.reduce(contexts).tolist()
        return [logprob_of(*pair, spec.num_top) for pair in zip(wanted, spec.targets, strict=True)]


def _step_cost(config: RunnerConfig) -> StepCost | None:
    """Return the duration of a step; None if steps take no time."""
    cost = StepCost(
        config.sim_step_ms / 1e3,
        config.sim_decode_row_us / 1e6,
        config.sim_prefill_token_us / 1e6,
        config.sim_context_token_ns / 1e9,
    )
    return None if cost == StepCost(0.0, 0.0, 0.0, 0.0) else cost
