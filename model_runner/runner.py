"""The model runner: executes step plans on a real model.

The module works on rows, pages and tokens, and does not depend on requests.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import msgspec
import torch
from torch import Tensor

from ebbtide.config import RunnerConfig
from ebbtide.errors import PlanError
from ebbtide.messages import RunnerInfo
from ebbtide.plan import ItemFailure, PlanItem, PromptLogprobSpec, StepPlan, StepResult
from ebbtide.progress import Progress
from ebbtide.tokenization.model_files import ModelFiles

from .attention import AttentionBackend, choose_backend
from .attention.pooled import build_attention
from .checkpoint.weights import Checkpoint, open_checkpoint
from .cpu_threads import use_threads
from .cuda_graphs import choose_graphs, cuda_capture, side_stream
from .determinism import UNEVEN_HEADS, obstacle, require_compiled
from .device import choose_device, choose_dtype
from .graphs import Capture, DecodeGraphs, GraphParts
from .isolation import Computed, compute_isolated
from .kv.copy_costs import measure_costs
from .kv.host_pages import HostTierPages
from .kv.memory import free_memory
from .kv.page_copies import moves_by_pool
from .kv.page_table import PageTable, stage_tokens
from .kv.state_memory import StateMemory
from .models import check_architecture, has_compiled_code, load_model
from .models.model import Model
from .pending import PendingItems, PendingStep
from .pooling import normalized
from .sampling.prompt_logprobs import compute_prompt_logprobs, stage_targets
from .sampling.sampler import PendingLogprobs, Sampler, SampleSpec, SamplingInputs
from .sampling.sampling_functions import sampling_functions
from .sizes import PoolRequest, Pools, build_pools, choose_context_length
from .start_report import log_choices, start_memory
from .step_inputs import StepInputs
from .tensor_parallel.group import RankError, RankPlace, join
from .transfers import DeviceToHostCopy, SideUpload, upload

log = logging.getLogger(__name__)


class ModelRunner:
    """Runs one model on one device. Plans are computed in the order of submission."""

    def __init__(
        self,
        model: Model,
        attention: AttentionBackend,
        tables: Sequence[PageTable],
        info: RunnerInfo,
        states: StateMemory | None = None,
    ) -> None:
        """
        tables: one page table per KV pool of ``info``.
        states: the memory of the pool that follows them; None if there is no such pool.
        """
        self.info = info
        self._host: HostTierPages | None = None
        self._model = model
        self._attention = attention
        self._tables = tables
        self._states = states
        device = tables[0].tensor.device
        self._sampling = sampling_functions(device)
        self._sampler = Sampler(info.num_rows, info.vocab_size, info.eos_token_ids, self._sampling.draw)
        self._last_tokens = torch.zeros(info.num_rows + 1, dtype=torch.int64, device=device)  # one entry for padding
        self._has_sample = [False] * info.num_rows
        self._pending: deque[PendingStep] = deque()
        self._graphs: DecodeGraphs | None = None
        self._side_stream = side_stream(device) if device.type == "cuda" else None

    @classmethod
    def load(
        cls,
        files: ModelFiles,
        config: RunnerConfig,
        progress: Progress,
        place: RankPlace | None = None,
        capture: Capture | None = None,
    ) -> ModelRunner:
        """Load the weights and allocate the pool. Raises StartupError if loading or allocation fails.

        Args:
            place: this process among the tensor-parallel ranks; None if there is only one.
            capture: function that captures decode graphs; None for CUDA's on CUDA, and for no graphs on other devices.
        """
        adapts = use_threads(config.num_threads, num_ranks=config.tp)
        device = choose_device(config.device, rank=0 if place is None else place.rank)
        checkpoint = replace(open_checkpoint(files), is_dummy=config.load_format == "dummy", progress=progress)
        dtype, has_kernels = _checked_dtype(checkpoint, config, device)
        backend, module = choose_backend(config.attention_backend, device, dtype, config.tokens_per_page)
        context_length = choose_context_length(checkpoint, config.context_length)
        group = None if place is None else join(place, device)
        free_bytes = free_memory(device) // (config.tp if device.type == "cpu" else 1)
        progress(f"Reading the weights ({checkpoint.architecture})")
        memory = start_memory(device)
        with memory.part("the weights"):
            model = load_model(
                checkpoint,
                dtype=dtype,
                device=device,
                compiled=has_kernels and dtype == torch.bfloat16,
                quantization=config.quantization,
                group=group,
            )
        require_compiled(files, config, None if model.is_deterministic else UNEVEN_HEADS)
        if adapts:
            model.adapt_threads()
        if capture is None and device.type == "cuda":
            capture = cuda_capture(device)
        graphs = choose_graphs(config, backend, can_capture=capture is not None, is_capturable=model.is_capturable)
        progress("Allocating the KV pool")
        wanted = PoolRequest(dtype, device, free_bytes, group, backend, context_length, 1 if graphs.sizes else 0)
        with memory.part("the KV pool"):
            pools = build_pools(model, config, wanted)
        info = RunnerInfo(
            context_length=context_length,
            vocab_size=model.vocab_size,
            pools=pools.all_infos(context_length),
            num_rows=config.max_running_requests,
            eos_token_ids=checkpoint.eos_ids_of(model.vocab_size),
            pool_bytes=pools.num_bytes * config.tp,
            device=device.type,
            dtype=str(dtype).removeprefix("torch."),
            attention=backend,
            max_in_flight=1 if device.type == "cpu" or config.disable_overlap_schedule else 2,
            deterministic=model.is_deterministic,
        )
        runner = cls(model, build_attention(module, pools.kv), pools.page_tables(info, device), info, pools.states)
        with memory.part("the decode graphs"):
            runner._capture(graphs.sizes, capture, progress)
        log_choices(config, info, graphs)
        return runner._with_host_pages(pools, config, progress)

    def _capture(self, sizes: tuple[int, ...], capture: Capture | None, progress: Progress) -> None:
        """Capture decode graphs. In each pool, the page after those in ``info.pools`` is the padding page."""
        if capture is None or not sizes:
            return
        rows = [
            table.add_padding_row(pool.num_pages) for table, pool in zip(self._tables, self.info.pools, strict=True)
        ]
        parts = GraphParts(
            model=self._model,
            attention=self._attention,
            tables=self._tables,
            padding_row=rows[0],
            last_tokens=self._last_tokens,
            longest=self.info.context_length,
            sample=self._sampling.sample_rows,
        )
        graphs = DecodeGraphs(parts, sizes)
        graphs.capture(capture, progress)
        self._graphs = graphs

    @torch.inference_mode()
    def submit(self, plan: StepPlan) -> None:
        """Copy pages and compute the step. On an accelerator, this only launches the kernels. See ``Runner``.

        Raises PlanError if the plan as a whole is invalid. A device error is raised too: it cannot be attributed to
        an item, and the device is unusable afterwards.
        """
        if len(self._pending) == self.info.max_in_flight:
            raise PlanError(f"Plan {plan.number} is submitted while {len(self._pending)} others are uncollected.")
        if not plan.items and plan.copies is None:
            raise PlanError(f"Plan {plan.number} is empty.")
        if len({item.row for item in plan.items}) < len(plan.items):
            raise PlanError(f"Plan {plan.number} has two items of one row.")
        moves = [] if plan.copies is None else moves_by_pool(plan.copies, self.info)
        if self._host is not None:
            self._host.carry_out(moves)
        parts: list[Computed[PendingItems]] = []
        failures: list[ItemFailure] = []
        if plan.items:  # a plan that only copies pages has an empty result
            compute = partial(self._compute, num_ids=plan.num_token_ids)
            parts, failures = compute_isolated(plan.items, compute, fatal=(torch.AcceleratorError, RankError))
        self._pending.append(PendingStep(plan.number, plan.items, parts, failures))

    def collect(self) -> StepResult:
        """Return the result of the oldest uncollected plan. Blocks until it has been computed."""
        if not self._pending:
            raise PlanError("There is no plan to collect.")
        return self._pending.popleft().wait()

    def _with_host_pages(self, pools: Pools, config: RunnerConfig, progress: Progress) -> ModelRunner:
        """If ``kv_offload_gb`` is set, allocate host pages and measure the copy costs. Returns this runner."""
        free_bytes = free_memory(torch.device("cpu")) // config.tp
        counts = pools.host_page_counts(config.kv_offload_gb / config.tp, free_bytes)
        if counts:
            progress("Allocating the host tier")
            self._host = HostTierPages(pools.kv, counts)
            self.info = msgspec.structs.replace(self.info, num_host_pages=counts[0], more_host_pages=counts[1:])
            costs = measure_costs(self)
            self.info = msgspec.structs.replace(
                self.info, recompute_token_s=costs.recompute_token_s, restore_token_s=costs.restore_token_s
            )
        return self

    def _stage(self, items: list[PlanItem], num_ids: int) -> StepInputs:
        """Return the inputs of a step, on the host.

        Raises PlanError if an item is invalid; no kernel has then been launched.
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
        states = None if self._states is None else self._states.stage(items, len(self._tables))
        return StepInputs(pages, tokens, rows, self._sampler.stage(specs, num_ids), targets, states)

    def _compute(self, items: list[PlanItem], *, num_ids: int) -> PendingItems:
        """Run one forward pass and sample. After an exception, the call can be repeated with some of the items."""
        staged = self._stage(items, num_ids)
        size = None if self._graphs is None else self._graphs.size_for(staged)
        if size is not None:
            return self._replay(items, staged, size)
        inputs = upload(staged, self._last_tokens.device)
        for table, writes in zip(self._tables, inputs.pages, strict=True):
            table.write(writes)
        for row in inputs.rows:
            self._sampler.start_row(row)
        num_embeddings = sum(item.embeds for item in items)
        batch = inputs.tokens.batch(self._tables, self._last_tokens)
        if self._states is not None and inputs.states is not None:
            batch = replace(batch, states=self._states.batch(inputs.states))
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
        if self._states is not None and batch.states is not None:
            self._states.commit(batch.states)
        self._note(items, inputs.sampling, sampled.tokens)
        return result

    def _replay(self, items: list[PlanItem], staged: StepInputs, size: int) -> PendingItems:
        """Run a decode step as a graph.

        The graph's samples ignore penalties, bias, masks and log-probabilities. If a row needs any of these, all rows
        are sampled again from the graph's logits.
        """
        assert self._graphs is not None
        if self._sampler.is_plain(staged.sampling):
            tokens = self._graphs.replay(size, staged).tokens.clone()  # the next step overwrites the graph's tensor
            self._mark(items)
            return PendingItems(DeviceToHostCopy(tokens), None, None)
        beside = SideUpload(staged.sampling, self._last_tokens.device, self._side_stream)
        logits = self._graphs.replay(size, staged).logits
        inputs = beside.wait()
        sampled = self._sampler.sample(logits, inputs)
        logprobs = None if sampled.logprobs is None else PendingLogprobs(sampled.logprobs)
        result = PendingItems(DeviceToHostCopy(sampled.tokens), logprobs, None)
        self._note(items, inputs, sampled.tokens)
        return result

    def _note(self, items: list[PlanItem], inputs: SamplingInputs, tokens: Tensor) -> None:
        """Record the samples in the rows. Call it last, because a step that raises must not record its tokens."""
        ids = tokens.clamp(min=0)
        self._sampler.note(inputs, ids)
        self._last_tokens[inputs.rows] = ids
        self._mark(items)

    def _mark(self, items: list[PlanItem]) -> None:
        """Record which rows have a last sample."""
        for item in items:
            self._has_sample[item.row] = item.num_samples > 0 or (self._has_sample[item.row] and item.init is None)


def _checked_dtype(checkpoint: Checkpoint, config: RunnerConfig, device: torch.device) -> tuple[torch.dtype, bool]:
    """Return the element type, and True if there is compiled code for the model.

    Raises StartupError if the model is not supported with this configuration.
    """
    check_architecture(checkpoint, num_ranks=config.tp)
    has_kernels = config.tp == 1 and device.type == "cpu" and has_compiled_code(checkpoint, config.attention_backend)
    dtype = choose_dtype(config.dtype, device, checkpoint.stored_dtype, has_kernels=has_kernels)
    require_compiled(checkpoint.files, config, obstacle(device, dtype, has_kernels=has_kernels))
    return dtype, has_kernels


def _logprob_specs(items: list[PlanItem]) -> list[PromptLogprobSpec]:
    return [item.prompt_logprobs for item in items if item.prompt_logprobs is not None]
