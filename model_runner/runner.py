"""The model runner: carries out step plans on a real model. Knows rows, pages and tokens, not requests."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import msgspec
import torch
from torch import Tensor

from ebbtide.config import RunnerConfig
from ebbtide.errors import PlanError, StartupError
from ebbtide.messages import RunnerInfo, TokenLogprob
from ebbtide.plan import PageCopies, StepPlan, StepResult
from ebbtide.tokenization.model_files import ModelFiles

from .attention import AttentionBackend, choose_backend
from .checkpoint.weights import Checkpoint, open_checkpoint
from .context import longest_context
from .device import choose_device, choose_dtype
from .kv.copy_costs import measure_costs
from .kv.host_pages import HostPages, bytes_per_page, num_host_pages
from .kv.kv_pool import KVPool
from .kv.memory import PoolBudget, free_memory, pool_limit, set_num_threads
from .kv.page_copies import PageMoves, checked_moves
from .kv.page_table import PageTable, gather_inputs
from .models import Model, check_architecture, load_model
from .sampling.prompt_logprobs import PendingPromptLogprobs, compute_prompt_logprobs
from .sampling.sampler import Logprobs, Sampler, SampleSpec
from .transfers import DeviceToHostCopy

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PendingResult:
    """A step whose tokens may still be in the making."""

    number: int
    tokens: DeviceToHostCopy
    logprobs: Logprobs | None
    prompt_logprobs: PendingPromptLogprobs | None = None


class ModelRunner:
    """One model on one device. Plans are computed in the order in which they come."""

    def __init__(self, model: Model, attention: AttentionBackend, table: PageTable, info: RunnerInfo) -> None:
        self.info = info
        self._host: HostPages | None = None
        self._model = model
        self._attention = attention
        self._table = table
        device = table.tensor.device
        self._sampler = Sampler(info.num_rows, info.vocab_size, info.eos_token_ids, device)
        self._last_tokens = torch.zeros(info.num_rows, dtype=torch.int64, device=device)
        self._has_sample = [False] * info.num_rows
        self._pending: deque[PendingResult] = deque()

    @classmethod
    def load(cls, files: ModelFiles, config: RunnerConfig, progress: Callable[[str], None]) -> ModelRunner:
        """Load the weights, size and touch the pool. Raises StartupError with one sentence."""
        set_num_threads()
        device = choose_device(config.device)
        checkpoint = open_checkpoint(files)
        check_architecture(checkpoint)
        dtype = choose_dtype(config.dtype, device, checkpoint.stored_dtype)
        backend, module = choose_backend(config.attention_backend, device, dtype)
        context_length = _context_length(checkpoint, config.context_length)
        free_bytes = free_memory(device)
        progress(f"loading {files.name} ({checkpoint.architecture}) as {_name(dtype)} on {device.type}")
        model = load_model(checkpoint, dtype=dtype, device=device)
        pool = _build_pool(model, config, dtype=dtype, device=device, free_bytes=free_bytes)
        progress(f"KV pool of {pool.num_pages * pool.page_size} tokens, {pool.num_bytes / (1 << 20):.0f} MiB")
        table = PageTable(
            config.max_running_requests,
            context_length,
            num_pages=pool.num_pages,
            page_size=pool.page_size,
            device=device,
        )
        info = RunnerInfo(
            context_length=context_length,
            vocab_size=model.vocab_size,
            num_pages=pool.num_pages,
            page_size=pool.page_size,
            num_rows=config.max_running_requests,
            eos_token_ids=checkpoint.eos_token_ids,
            pool_bytes=pool.num_bytes,
            device=device.type,
            dtype=_name(dtype),
            attention=backend,
            max_in_flight=1 if device.type == "cpu" else 2,
        )
        return cls(model, module.build(pool), table, info)._with_host_pages(pool, config, progress)

    @torch.inference_mode()
    def submit(self, plan: StepPlan) -> None:
        """Copy and compute; on an accelerator, queue that. Raises PlanError for a plan that cannot be carried out."""
        if len(self._pending) == self.info.max_in_flight:
            raise PlanError(f"Plan {plan.number} comes while {len(self._pending)} others are uncollected.")
        if not plan.items and plan.copies is None:
            raise PlanError(f"Plan {plan.number} is empty.")
        moves = None if plan.copies is None else self._checked_moves(plan.copies)
        self._table.apply(plan.items)
        self._check_own_samples(plan)
        if moves is not None and self._host is not None:
            self._host.carry_out(moves)
        self._pending.append(self._compute(plan) if plan.items else self._nothing(plan))

    def collect(self) -> StepResult:
        """The result of the oldest uncollected plan; waits for it."""
        if not self._pending:
            raise PlanError("There is no plan to collect.")
        pending = self._pending.popleft()
        tokens = pending.tokens.wait().tolist()
        logprobs = None if pending.logprobs is None else _token_logprobs(pending.logprobs, len(tokens))
        prompt_logprobs = [] if pending.prompt_logprobs is None else pending.prompt_logprobs.wait()
        return StepResult(pending.number, tokens, logprobs, prompt_logprobs)

    def _with_host_pages(self, pool: KVPool, config: RunnerConfig, progress: Callable[[str], None]) -> ModelRunner:
        """This runner with the host tier that it was told to have, and what that saves; itself when there is none."""
        num_pages = num_host_pages(config.kv_offload_gb, bytes_per_page(pool), free_memory(torch.device("cpu")))
        if num_pages:
            progress(f"host tier of {num_pages * pool.page_size} tokens, {config.kv_offload_gb:g} GiB")
            self._host = HostPages(pool, num_pages)
            self.info = msgspec.structs.replace(self.info, num_host_pages=num_pages)
            costs = measure_costs(self)
            self.info = msgspec.structs.replace(
                self.info, recompute_token_s=costs.recompute_token_s, restore_token_s=costs.restore_token_s
            )
        return self

    def _checked_moves(self, copies: PageCopies) -> PageMoves:
        return checked_moves(copies, num_pages=self.info.num_pages, num_host_pages=self.info.num_host_pages)

    def _compute(self, plan: StepPlan) -> PendingResult:
        for item in plan.items:
            if item.init is not None:
                self._sampler.start_row(item.row, item.init)
                self._has_sample[item.row] = False
        batch = gather_inputs(plan, self._table, self._last_tokens)
        self._attention.plan(batch)
        return self._sample(plan, self._model.forward(batch, self._attention))

    def _nothing(self, plan: StepPlan) -> PendingResult:
        """The result of a plan that only copies; on an accelerator, not before the copies are made."""
        return PendingResult(plan.number, DeviceToHostCopy(self._last_tokens[:0]), None)

    def _check_own_samples(self, plan: StepPlan) -> None:
        for item in plan.items:
            if item.tokens is None and (item.init is not None or not self._has_sample[item.row]):
                raise PlanError(f"Row {item.row} has no sample of its own yet.")

    def _sample(self, plan: StepPlan, states: Tensor) -> PendingResult:
        """states: first those to sample from, then those before a prompt token whose log-probability is wanted."""
        sampling = [item for item in plan.items if item.samples]
        logits = self._model.logits(states[: len(sampling)])
        sampled = self._sampler.sample(logits, [SampleSpec(item.row, item.end - 1, item.mask) for item in sampling])
        rows = torch.tensor([item.row for item in sampling], dtype=torch.int64, device=logits.device)
        self._last_tokens[rows] = sampled.tokens
        for item in sampling:
            self._has_sample[item.row] = True
        prompt_logprobs = self._prompt_logprobs(plan, states[len(sampling) :])
        return PendingResult(plan.number, DeviceToHostCopy(sampled.tokens), sampled.logprobs, prompt_logprobs)

    def _prompt_logprobs(self, plan: StepPlan, states: Tensor) -> PendingPromptLogprobs | None:
        specs = [item.prompt_logprobs for item in plan.items if item.prompt_logprobs is not None]
        return compute_prompt_logprobs(states, self._model.logits, specs, self.info.vocab_size) if specs else None


def _context_length(checkpoint: Checkpoint, asked: int | None) -> int:
    longest = longest_context(checkpoint.config)
    if asked is None:
        return longest
    if not 1 <= asked <= longest:
        raise StartupError(f"--context-length {asked} is not within the model's 1 to {longest} tokens.")
    return asked


def _build_pool(
    model: Model, config: RunnerConfig, *, dtype: torch.dtype, device: torch.device, free_bytes: int
) -> KVPool:
    budget = PoolBudget(
        free_bytes=free_bytes,
        weight_bytes=model.weight_bytes,
        fraction=config.mem_fraction_static,
        token_bytes=model.kv_shape.token_bytes(dtype),
        page_size=config.page_size,
        limit_bytes=pool_limit(device),
        max_total_tokens=config.max_total_tokens,
    )
    return KVPool(model.kv_shape, budget.num_pages(), config.page_size, dtype=dtype, device=device)


def _token_logprobs(logprobs: Logprobs, num_tokens: int) -> list[TokenLogprob | None]:
    """Parallel to the step's tokens: None for those that did not ask."""
    result: list[TokenLogprob | None] = [None] * num_tokens
    chosen, ids, values = logprobs.chosen.tolist(), logprobs.top_ids.tolist(), logprobs.top_values.tolist()
    for place, (number, count) in enumerate(zip(logprobs.asked, logprobs.counts, strict=True)):
        result[number] = TokenLogprob(chosen[place], ids[place][:count], values[place][:count])
    return result


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
