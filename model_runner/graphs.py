"""Decode steps as captured graphs: one call launches the kernels of a whole step.

A graph is captured for one batch size and works on tensors with fixed addresses. A step with fewer rows is padded with
rows that read and write a reserved page. The module does not depend on CUDA: the caller passes the capture function.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from ebbtide.progress import Progress

from .attention import AttentionBackend
from .batch import ForwardBatch, PoolPlaces
from .kv.page_table import PageTable, PageWrites
from .models.model import Model
from .sampling.row_draws import RowDraws, stage_row_draws
from .sampling.sampler import SamplingInputs
from .step_inputs import StepInputs
from .transfers import StaticInputs, host_tensor

RowSampler = Callable[[Tensor, RowDraws], Tensor]
# A function that records the work that its argument queues on the device, and returns a function that queues it again.
Capture = Callable[[Callable[[], None]], Callable[[], None]]


@dataclass(frozen=True, slots=True)
class DecodeInputs:
    """The inputs of a graph for B rows, in one buffer. All tensors have fixed sizes.

    Attributes:
        token_ids: int64 [B], the input tokens; 0 where ``is_own`` is True.
        is_own: bool [B], True if the input token is the row's last sample, which is on the device.
        rows: int64 [B], the page-table rows.
        positions: int64 [B], the positions of the input tokens.
        pages: the changes of the page tables, one element with B entries per pool.
        draws: the sampling parameters.
    """

    token_ids: Tensor
    is_own: Tensor
    rows: Tensor
    positions: Tensor
    pages: list[PageWrites]
    draws: RowDraws


@dataclass(frozen=True, slots=True)
class GraphParts:
    """The objects that all graphs use.

    Attributes:
        tables: the page table of each pool, including ``padding_row``.
        padding_row: index of the row of the page tables and of ``last_tokens`` that padding uses.
        last_tokens: int64 [rows + 1], the last sample of each row.
        longest: the maximum context length. The attention of a graph is prepared for this length.
        sample: function that samples one token per row.
    """

    model: Model
    attention: AttentionBackend
    tables: Sequence[PageTable]
    padding_row: int
    last_tokens: Tensor
    longest: int
    sample: RowSampler


@dataclass(frozen=True, slots=True)
class Replayed:
    """The outputs of a graph; the next replay overwrites them.

    Attributes:
        logits: [N, vocab].
        tokens: int64 [N], the samples of rows without penalties, bias and mask.
    """

    logits: Tensor
    tokens: Tensor


@dataclass(slots=True)
class _Outputs:
    """The tensors to which all graphs write. They have as many rows as the largest graph."""

    tokens: Tensor
    logits: Tensor


@dataclass(slots=True)
class DecodeGraphs:
    """The captured graphs, one per batch size."""

    parts: GraphParts
    sizes: tuple[int, ...]
    _inputs: dict[int, StaticInputs[DecodeInputs]] = field(default_factory=dict)
    _replays: dict[int, Callable[[], None]] = field(default_factory=dict)
    _outputs: _Outputs | None = None

    @torch.inference_mode()
    def capture(self, capture: Capture, progress: Progress) -> None:
        """Capture a graph for each batch size, the largest first, so that the others fit into its memory.

        progress: called before each capture.
        """
        for number, size in enumerate(sorted(self.sizes, reverse=True)):
            progress(f"Capturing {len(self.sizes)} decode graphs", number / len(self.sizes))
            inputs = StaticInputs(self._padded(size), self.parts.last_tokens.device)
            if self._outputs is None:
                self._outputs = self._make_outputs(self._logits(inputs.values)[0])
            self._inputs[size] = inputs
            self._replays[size] = capture(partial(self._compute, inputs.values))

    def size_for(self, staged: StepInputs) -> int | None:
        """Return the batch size of the smallest graph that can run a staged step; None if no graph can.

        A graph can run steps in which every item has one token and samples, and no row is started.
        """
        tokens, num_rows = staged.tokens, len(staged.tokens.rows)
        only_decodes = len(tokens.token_ids) == num_rows == len(tokens.wanted) == len(staged.sampling.row_numbers)
        if staged.rows or not only_decodes:
            return None
        needed = max(num_rows, *(len(writes.pages) for writes in staged.pages))
        return min((size for size in self.sizes if size >= needed), default=None)

    def replay(self, size: int, staged: StepInputs) -> Replayed:
        """Launch the graph for ``size`` rows with a staged step. ``size`` must be the result of ``size_for``."""
        inputs = self._padded(size)
        tokens, num_rows = staged.tokens, len(staged.tokens.rows)
        inputs.token_ids[:num_rows] = tokens.token_ids
        inputs.is_own[tokens.own_places] = True
        inputs.rows[:num_rows] = tokens.item_rows
        inputs.positions[:num_rows] = tokens.positions
        for padded, writes in zip(inputs.pages, staged.pages, strict=True):
            padded.places[: len(writes.places)] = writes.places
            padded.pages[: len(writes.pages)] = writes.pages
        draws = stage_row_draws(staged.sampling, size, self.parts.model.vocab_size)
        self._inputs[size].load(replace(inputs, draws=draws))
        self._replays[size]()
        outputs = self._outputs
        assert outputs is not None
        return Replayed(outputs.logits[:num_rows], outputs.tokens[:num_rows])

    def _padded(self, size: int) -> DecodeInputs:
        """Return inputs with only padding rows, on the host. Their page-table writes change nothing."""
        parts = self.parts
        vocab_size = parts.model.vocab_size
        pages = []
        for table in parts.tables:
            width = table.tensor.shape[1]
            places = np.full(size, parts.padding_row * width)
            pages.append(PageWrites(torch.from_numpy(places), torch.full((size,), table.padding_page).int()))
        nothing = SamplingInputs([], host_tensor([], np.int64), [], None, None, None, vocab_size)
        return DecodeInputs(
            token_ids=torch.zeros(size, dtype=torch.int64),
            is_own=torch.zeros(size, dtype=torch.bool),
            rows=torch.full((size,), parts.padding_row),
            positions=torch.zeros(size, dtype=torch.int64),
            pages=pages,
            draws=stage_row_draws(nothing, size, vocab_size),
        )

    def _make_outputs(self, logits: Tensor) -> _Outputs:
        """Allocate the shared outputs. logits: the logits of the largest graph, which give their shape."""
        tokens = torch.zeros(len(logits), dtype=torch.int64, device=logits.device)
        return _Outputs(tokens, torch.empty_like(logits))

    def _compute(self, inputs: DecodeInputs) -> None:
        """Launch all kernels of one decode step on the device stream.

        The method can be captured: it copies nothing to or from the host, and reads no values of tensors.
        """
        logits, rows = self._logits(inputs)
        tokens = self.parts.sample(logits, inputs.draws)
        self.parts.last_tokens.index_copy_(0, rows, tokens.clamp(min=0))
        outputs = self._outputs
        assert outputs is not None
        outputs.logits[: len(rows)].copy_(logits)
        outputs.tokens[: len(rows)].copy_(tokens)

    def _logits(self, inputs: DecodeInputs) -> tuple[Tensor, Tensor]:
        """Return the logits of a step, [B, vocab], and the rows, int64 [B]."""
        parts = self.parts
        for table, writes in zip(parts.tables, inputs.pages, strict=True):
            table.write(writes)
        batch = self._batch(inputs)
        parts.attention.plan(batch)
        return parts.model.logits(parts.model.forward(batch, parts.attention)), inputs.rows

    def _batch(self, inputs: DecodeInputs) -> ForwardBatch:
        parts, size = self.parts, len(inputs.rows)
        device = inputs.rows.device
        places = [PoolPlaces(table.slots(inputs.rows, inputs.positions), table.tensor) for table in parts.tables]
        return ForwardBatch(
            token_ids=torch.where(inputs.is_own, parts.last_tokens[inputs.rows], inputs.token_ids),
            positions=inputs.positions,
            slots=places[0].slots,
            wanted=torch.arange(size, device=device),
            item_rows=inputs.rows,
            item_ends=inputs.positions + 1,
            cu_query_lens=torch.arange(size + 1, dtype=torch.int32, device=device),
            page_table=places[0].page_table,
            rows=[parts.padding_row] * size,
            starts=[parts.longest - 1] * size,
            query_lens=[1] * size,
            num_decodes=size,
            more_pools=places[1:],
            any_rows=True,
        )


def graph_sizes(largest: int) -> tuple[int, ...]:
    """Return the batch sizes to capture. They are close to each other, so that little padding is needed."""
    sizes = {1, 2, 4, *range(8, 64, 8), *range(64, 256, 16), *range(256, largest, 32), largest}
    return tuple(sorted(size for size in sizes if size <= largest))
