"""A small random model of the Llama family, and steps over scattered pages for it."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import accumulate

import torch
from torch import Tensor

from ebbtide.model_runner.attention import AttentionBackend
from ebbtide.model_runner.batch import ForwardBatch
from ebbtide.model_runner.kv.kv_pool import KVPool, KVShape
from ebbtide.model_runner.layers.rotary import Rotary
from ebbtide.model_runner.models.llama import LlamaModel
from ebbtide.model_runner.models.llama_config import LlamaConfig
from ebbtide.model_runner.models.model import Model

CPU = torch.device("cpu")
NUM_ROWS, MAX_CONTEXT = 6, 320


@dataclass(frozen=True)
class Sizes:
    """The sizes of a model, and the switches that its family leaves open."""

    hidden: int = 64
    intermediate: int = 96
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 16
    vocab_size: int = 192
    page_size: int = 16
    window: int | None = None
    switches: dict[str, bool] = field(default_factory=dict)

    def config(self) -> LlamaConfig:
        """The configuration of a model with two layers, of which the first has the window."""
        switches = {"tied": False, "qkv_bias": False, "out_bias": False, "mlp_bias": False, "qk_norm": False}
        return LlamaConfig(
            vocab_size=self.vocab_size,
            hidden=self.hidden,
            intermediate=self.intermediate,
            num_layers=2,
            num_heads=self.heads,
            num_kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            norm_eps=1e-5,
            windows=(self.window, None),
            **(switches | self.switches),
        )


def small_llama(sizes: Sizes, dtype: torch.dtype = torch.bfloat16) -> LlamaModel:
    """A model with the same random weights every time, which bfloat16 holds exactly."""
    config = sizes.config()
    frequencies = 1e4 ** -(torch.arange(0, config.head_dim, 2) / config.head_dim)
    model = LlamaModel(config, Rotary(frequencies, 1.0, dtype=dtype), dtype=dtype, device=CPU)
    generator = torch.Generator().manual_seed(7)
    for name, target in model.targets().items():
        values = torch.randn(target.shape, generator=generator).bfloat16().float()
        target.copy_(1 + values / 8 if name.endswith("norm.weight") else values / target.shape[-1] ** 0.5)
    return model


class Conversations:
    """Contexts of some rows in a pool whose unused slots are nan. Pages lie in random order."""

    def __init__(self, sizes: Sizes, dtype: torch.dtype) -> None:
        self._page_size = sizes.page_size
        shape, width = KVShape(2, sizes.kv_heads, sizes.head_dim), MAX_CONTEXT // sizes.page_size
        self.pool = KVPool(shape, NUM_ROWS * width, sizes.page_size, dtype=dtype, device=CPU)
        self.pool.data.fill_(-1 if dtype == torch.int8 else torch.nan)  # scales of 0xffffffff are nan too
        order = torch.randperm(NUM_ROWS * width, generator=torch.Generator().manual_seed(3))
        self._table = order.view(NUM_ROWS, width).int()

    def step(self, model: Model, attention: AttentionBackend, items: list[tuple[int, int, list[int]]]) -> Tensor:
        """Logits after the last token of each item, float32. items: row, first position and tokens."""
        batch = self._batch(items)
        attention.plan(batch)
        with torch.inference_mode():
            return model.logits(model.forward(batch, attention)).float()

    def _batch(self, items: list[tuple[int, int, list[int]]]) -> ForwardBatch:
        rows, starts = [row for row, _, _ in items], [start for _, start, _ in items]
        lens = [len(tokens) for _, _, tokens in items]
        positions = torch.cat([torch.arange(start, start + count) for start, count in zip(starts, lens, strict=True)])
        of_token = torch.tensor(rows).repeat_interleave(torch.tensor(lens))
        size = self._page_size
        return ForwardBatch(
            token_ids=torch.tensor([token for _, _, tokens in items for token in tokens]),
            positions=positions,
            slots=self._table[of_token, positions // size].long() * size + positions % size,
            wanted=torch.tensor([*accumulate(lens)]) - 1,
            item_rows=torch.tensor(rows),
            item_ends=torch.tensor([start + count for start, count in zip(starts, lens, strict=True)]),
            cu_query_lens=torch.tensor([*accumulate(lens, initial=0)], dtype=torch.int32),
            page_table=self._table,
            rows=rows,
            starts=starts,
            query_lens=lens,
            num_decodes=[*(count == 1 for count in lens), False].index(False),
        )
