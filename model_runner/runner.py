"""The model runner: executes step plans on a real model.

The module works on rows, pages and tokens, and does not depend on requests.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import msgspec
import torch
from torch import Tensor

from ebbtide.config import RunnerConfig
from ebbtide.errors import PlanError, StartupError
from ebbtide.messages import PoolInfo, RunnerInfo
from ebbtide.plan import ItemFailure, PageCopies, PlanItem, PromptLogprobSpec, StepPlan, StepResult
from ebbtide.tokenization.model_files import ModelFiles

from .attention import AttentionBackend, choose_backend
from .checkpoint.weights import Checkpoint, open_checkpoint
from .context import longest_context
from .cpu_threads import use_threads
from .determinism import obstacle, require_deterministic
from .device import choose_device, choose_dtype
from .isolation import Computed, compute_isolated
from .kv.copy_costs import measure_costs
from .kv.host_pages import HostPages, bytes_per_page, num_host_pages
from .kv.kv_pool import KVPool
from .kv.memory import PoolBudget, free_memory, pool_limit
from .kv.page_copies import PageMoves, checked_moves
from .kv.page_table import PageTable, PageWrites, TokenInputs, stage_tokens
from .models import check_architecture, has_compiled_code, load_model
from .models.model import Model
from .pending import PendingItems, PendingStep
from .pooling import normalized
from .sampling.prompt_logprobs import compute_prompt_logprobs, stage_targets
from .sampling.row_state import RowInputs
from .sampling.sampler import PendingLogprobs, Sampler, SampleSpec, SamplingInputs
from .transfers import DeviceToHostCopy, upload

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StepInputs:
    """All tensors that one step sends to the device, in one copy.

    Attributes:
        pages: the changes of the page tables, one entry per pool.
        tokens: the items.
        rows: the sampling state of the rows that start in this step.
        sampling: the sampling inputs of the items that sample.
        targets: int64 [P], the prompt tokens whose log-probabilities are requested, in item order; None if there are
            none.
    """

    pages: list[PageWrites]
    tokens: TokenInputs
    rows: list[RowInputs]
    sampling: SamplingInputs
    targets: Tensor | None


class ModelRunner:
    """Runs one model on one device. Plans are computed in the order of submission."""

    def __init__(
        self, model: Model, attention: AttentionBackend, tables: Sequence[PageTable], info: RunnerInfo
    ) -> None:
        """tables: one page table per pool of ``info``."""
        self.info = info
        self._host: HostPages | None = None
        self._model = model
        self._attention = attention
        self._tables = tables
        device = tables[0].tensor.device
        self._sampler = Sampler(info.num_rows, info.vocab_size, info.eos_token_ids)
        self._last_tokens = torch.zeros(info.num_rows, dtype=torch.int64, device=device)
        self._has_sample = [False] * info.num_rows
        self._pending: deque[PendingStep] = deque()

    @classmethod
    def load(cls, files: ModelFiles, config: RunnerConfig, progress: Callable[[str], None]) -> ModelRunner:
        """Load the weights and allocate the pool. Raises StartupError if loading or allocation fails."""
        adapts = use_threads(config.num_threads)
        device = choose_device(config.device)
        checkpoint = open_checkpoint(files)
        check_architecture(checkpoint)
        has_kernels = device.type == "cpu" and has_compiled_code(checkpoint, config.attention_backend)
        dtype = choose_dtype(config.dtype, device, checkpoint.stored_dtype, has_kernels=has_kernels)
        if config.deterministic:
            require_deterministic(files.name, obstacle(device, dtype, has_kernels=has_kernels))
        backend, module = choose_backend(config.attention_backend, device, dtype)
        context_length = _context_length(checkpoint, config.context_length)
        free_bytes = free_memory(device)
        progress(f"Reading the weights ({checkpoint.architecture})")
        model = load_model(
            checkpoint,
            dtype=dtype,
            device=device,
            compiled=has_kernels and dtype == torch.bfloat16,
            quantization=config.quantization,
        )
        if config.deterministic and not model.is_deterministic:
            require_deterministic(files.name, "its head size is not a multiple of 16")
        if adapts:
            model.adapt_threads()
        progress("Allocating the KV pool")
        pool = _build_pool(model, config, dtype=dtype, device=device, free_bytes=free_bytes)
        pool_info = PoolInfo(pool.num_pages, pool.page_size)
        table = PageTable(config.max_running_requests, context_length, pool_info, device=device)
        info = RunnerInfo(
            context_length=context_length,
            vocab_size=model.vocab_size,
            pools=(pool_info,),
            num_rows=config.max_running_requests,
            eos_token_ids=tuple(token for token in checkpoint.eos_token_ids if token < model.vocab_size),
            pool_bytes=pool.num_bytes,
            device=device.type,
            dtype=_name(dtype),
            attention=backend,
            max_in_flight=1 if device.type == "cpu" else 2,
            deterministic=model.is_deterministic,
        )
        return cls(model, module.build(pool), [table], info)._with_host_pages(pool, config, progress)

    @torch.inference_mode()
    def submit(self, plan: StepPlan) -> None:
        """Copy pages and compute the step. On an accelerator, this only queues the work. See ``Runner``.

        Raises PlanError for a plan that is invalid as a whole. A device error is raised as well: it cannot be
        attributed to an item, and the device is unusable afterwards.
        """
        if len(self._pending) == self.info.max_in_flight:
            raise PlanError(f"Plan {plan.number} is submitted while {len(self._pending)} others are uncollected.")
        if not plan.items and plan.copies is None:
            raise PlanError(f"Plan {plan.number} is empty.")
        if len({item.row for item in plan.items}) < len(plan.items):
            raise PlanError(f"Plan {plan.number} has two items of one row.")
        moves = None if plan.copies is None else self._checked_moves(plan.copies)
        if moves is not None and self._host is not None:
            self._host.carry_out(moves)
        parts: list[Computed[PendingItems]] = []
        failures: list[ItemFailure] = []
        if plan.items:  # a plan that only copies has an (empty) result once the copies are made
            compute = partial(self._compute, num_ids=plan.num_token_ids)
            parts, failures = compute_isolated(plan.items, compute, fatal=(torch.AcceleratorError,))
        self._pending.append(PendingStep(plan.number, plan.items, parts, failures))

    def collect(self) -> StepResult:
        """Return the result of the oldest uncollected plan. Blocks until it is computed."""
        if not self._pending:
            raise PlanError("There is no plan to collect.")
        return self._pending.popleft().wait()

    def _with_host_pages(self, pool: KVPool, config: RunnerConfig, progress: Callable[[str], None]) -> ModelRunner:
        """If ``kv_offload_gb`` is set, add host memory for pages and measure the copy costs. Returns this runner."""
        num_pages = num_host_pages(config.kv_offload_gb, bytes_per_page(pool), free_memory(torch.device("cpu")))
        if num_pages:
            progress("Allocating the host tier")
            self._host = HostPages(pool, num_pages)
            self.info = msgspec.structs.replace(self.info, num_host_pages=num_pages)
            costs = measure_costs(self)
            self.info = msgspec.structs.replace(
                self.info, recompute_token_s=costs.recompute_token_s, restore_token_s=costs.restore_token_s
            )
        return self

    def _checked_moves(self, copies: PageCopies) -> PageMoves:
        return checked_moves(copies, num_pages=self.info.num_pages, num_host_pages=self.info.num_host_pages)

    def _stage(self, items: list[PlanItem], num_ids: int) -> StepInputs:
        """Return the inputs of a step, on the host.

        Raises PlanError for an invalid plan, before any work on the device.
        """
        pages = [table.stage(items) for table in self._tables]
        for item in items:
            if item.tokens is None and (item.init is not None or not self._has_sample[item.row]):
                raise PlanError(f"Row {item.row} has no sample of its own yet.")
        rows = [self._sampler.stage_row(item.row, item.init) for item in items if item.init is not None]
        specs = [SampleSpec(item.row, item.end - 1, item.mask) for item in items if item.num_samples]
        logprob_specs = _logprob_specs(items)
        targets = stage_targets(logprob_specs, self.info.vocab_size) if logprob_specs else None
        tokens = stage_tokens(items, self.info.vocab_size)
        return StepInputs(pages, tokens, rows, self._sampler.stage(specs, num_ids), targets)

    def _compute(self, items: list[PlanItem], *, num_ids: int) -> PendingItems:
        """Run one forward pass and sample. If it raises, it can be repeated with some of the items."""
        inputs = upload(self._stage(items, num_ids), self._last_tokens.device)
        for table, writes in zip(self._tables, inputs.pages, strict=True):
            table.write(writes)
        for row in inputs.rows:
            self._sampler.start_row(row)
        num_embeddings = sum(item.embeds for item in items)
        batch = inputs.tokens.batch(self._tables, self._last_tokens)
        self._attention.plan(batch)
        states = self._model.forward(batch, self._attention)  # see ``ForwardBatch.wanted``
        num_samples = len(inputs.sampling.rows)
        sampled = self._sampler.sample(self._model.logits(states[:num_samples]), inputs.sampling)
        embeddings = prompt_logprobs = None
        num_before = num_samples + num_embeddings
        if num_embeddings:
            embeddings = DeviceToHostCopy(normalized(self._model.hidden(states[num_samples:num_before])))
        if inputs.targets is not None:
            prompt_logprobs = compute_prompt_logprobs(
                states[num_before:],
                self._model.logits,
                _logprob_specs(items),
                inputs.targets,
                self.info.vocab_size,
            )
        logprobs = None if sampled.logprobs is None else PendingLogprobs(sampled.logprobs)
        result = PendingItems(DeviceToHostCopy(sampled.tokens), logprobs, prompt_logprobs, embeddings)
        self._note(items, inputs.sampling, sampled.tokens)
        return result

    def _note(self, items: list[PlanItem], inputs: SamplingInputs, tokens: Tensor) -> None:
        """Record the samples in the rows. Call it last, because a step that raises must not count its tokens."""
        ids = tokens.clamp(min=0)
        self._sampler.note(inputs, ids)
        self._last_tokens[inputs.rows] = ids
        for item in items:
            self._has_sample[item.row] = item.num_samples > 0 or (self._has_sample[item.row] and item.init is None)


def _logprob_specs(items: list[PlanItem]) -> list[PromptLogprobSpec]:
    return [item.prompt_logprobs for item in items if item.prompt_logprobs is not None]


def _context_length(checkpoint: Checkpoint, asked: int | None) -> int:
    longest = longest_context(checkpoint.config)
    if asked is None:
        return longest
    if not 1 <= asked <= longest:
        raise StartupError(f"--context-length {asked} is not within the model's range of 1 to {longest} tokens.")
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


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
