"""Random steps over random page tables, and naive attention as a reference for the backends."""

from __future__ import annotations

import copy
import random
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from ebbtide.model_runner.attention import AttentionBackend, LayerAttention
from ebbtide.model_runner.batch import ForwardBatch
from ebbtide.model_runner.kv.kv_pool import KVPool, KVShape


@dataclass(frozen=True)
class Case:
    """One kind of attention layer and one kind of step. lengths: (context before, new tokens) of each item."""

    lengths: tuple[tuple[int, int], ...] = ((0, 5), (70, 1), (33, 20))
    page_size: int = 16
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 16
    options: dict[str, Any] = field(default_factory=dict)
    sinks: bool = False

    def layer(self, index: int, device: torch.device) -> LayerAttention:
        """The layer's parameters; each head has another sink."""
        sinks = torch.linspace(-2, 2, self.heads, device=device) if self.sinks else None
        return LayerAttention(index, self.heads, self.kv_heads, self.head_dim, 0.3, sinks=sinks, **self.options)


MIXED = ((70, 1), (0, 1), (129, 1), (0, 5), (33, 20), (64, 64))
CASES = {
    "page size 1": Case(MIXED, page_size=1),
    "page size 16": Case(MIXED),
    "page size 64": Case(MIXED, page_size=64),
    "only decodes": Case(((5, 1), (63, 1), (64, 1))),
    "only prefills": Case(((0, 1 + 64), (17, 3))),
    "splits": Case(((1100, 1), (511, 1), (512, 1), (3, 1)), page_size=64),
    "softcap": Case(MIXED, options={"softcap": 2.0}),
    "window": Case(MIXED, options={"window": 9}),
    "window past a split": Case(((1100, 1), (700, 30)), options={"window": 100}),
    "sinks": Case(MIXED, sinks=True),
    "everything": Case(MIXED, page_size=1, options={"window": 40, "softcap": 3.0}, sinks=True),
    "one head each": Case(MIXED, heads=3, kv_heads=3),
    "one KV head for seven": Case(MIXED, heads=7, kv_heads=1),
    "head size 80": Case(MIXED, head_dim=80),
}
WITH_WINDOW = [name for name, case in CASES.items() if case.options.get("window")]


class Step:
    """A step of a case with random contents: the batch and a pool with the contexts' K/V."""

    def __init__(self, case: Case, *, device: torch.device, dtype: torch.dtype = torch.float32, seed: int = 0) -> None:
        self._case = case
        self._generator = torch.Generator().manual_seed(seed)
        self._order = random.Random(seed)
        pages = [-(-(before + new) // case.page_size) for before, new in case.lengths]
        shape = KVShape(2, case.kv_heads, case.head_dim)
        self.pool = KVPool(shape, sum(pages) + 3, case.page_size, dtype=dtype, device=device)
        self.pool.data.copy_(
            self._random(*self.pool.data.shape) * 50
        )  # large values in unused slots must not change a result
        self.batch = self._make_batch(pages, device)
        self.q = self._random(self.batch.num_tokens, case.heads, case.head_dim).to(self.pool.data)
        self.k = self._random(self.batch.num_tokens, case.kv_heads, case.head_dim).to(self.pool.data)
        self.v = self._random(self.batch.num_tokens, case.kv_heads, case.head_dim).to(self.pool.data)
        self._contexts = [self._fill(index) for index in range(len(pages))]

    def forget(self) -> None:
        """Fill the pages wholly before each item's window with NaN: they may belong to other requests by now."""
        case, window = self._case, self._case.options["window"]
        for row, (before, _) in zip(self.batch.rows, case.lengths, strict=True):
            gone = max(before - window + 1, 0) // case.page_size
            slots = self.batch.page_table[row, :gone, None].long() * case.page_size
            self.pool.data[:, :, (slots + torch.arange(case.page_size, device=slots.device)).flatten()] = torch.nan

    def run(self, backend: AttentionBackend) -> Tensor:
        """The backend's result, [T, heads, head_dim]."""
        backend.plan(self.batch)
        return backend.forward(self.q, self.k, self.v, self._case.layer(1, self.pool.device))

    def truth(self) -> Tensor:
        """The expected result: naive attention per item in float64, [T, heads, head_dim]."""
        layer = self._case.layer(1, torch.device("cpu"))
        parts, first = [], 0
        for (before, new), (k, v) in zip(self._case.lengths, self._contexts, strict=True):
            new_tokens = slice(first, first + new)
            keys, values = (
                torch.cat([old, mine[new_tokens].cpu().double()]) for old, mine in ((k, self.k), (v, self.v))
            )
            parts.append(_attend(self.q[new_tokens].cpu().double(), keys, values, layer, before))
            first += new
        return torch.cat(parts)

    def alone(self, index: int) -> Step:
        """A step with only one item, and the same pool and inputs."""
        first, new = sum(self.batch.query_lens[:index]), self.batch.query_lens[index]
        tokens, item = slice(first, first + new), slice(index, index + 1)
        batch = self.batch
        other = copy.copy(self)
        other.q, other.k, other.v = self.q[tokens], self.k[tokens], self.v[tokens]
        other.batch = replace(
            batch,
            token_ids=batch.token_ids[tokens],
            positions=batch.positions[tokens],
            slots=batch.slots[tokens],
            item_rows=batch.item_rows[item],
            item_ends=batch.item_ends[item],
            cu_query_lens=_running_sums([new], self.pool.device),
            rows=batch.rows[item],
            starts=batch.starts[item],
            query_lens=batch.query_lens[item],
            num_decodes=int(index < batch.num_decodes),
        )
        return other

    def stored(self) -> Tensor:
        """K and V of the step's tokens in the pool, [2, T, kv_heads, head_dim]."""
        return self.pool.data[1][:, self.batch.slots]

    def _random(self, *size: int) -> Tensor:
        return torch.randn(size, generator=self._generator)

    def _make_batch(self, pages: list[int], device: torch.device) -> ForwardBatch:
        """Rows and pages in random order; table entries after an item's last page name unused pages."""
        case, num_items = self._case, len(pages)
        numbers = self._order.sample(range(sum(pages) + 3), sum(pages))
        rows = self._order.sample(range(num_items + 2), num_items)
        table = torch.full((num_items + 2, max(pages) + 2), sum(pages) + 2, dtype=torch.int32)
        for row, count in zip(rows, pages, strict=True):
            table[row, :count] = torch.tensor([numbers.pop() for _ in range(count)])
        positions = [torch.arange(before, before + new) for before, new in case.lengths]
        slots = [
            table[row, where // case.page_size].long() * case.page_size + where % case.page_size
            for row, where in zip(rows, positions, strict=True)
        ]
        decodes = [new == 1 for _, new in case.lengths]
        return ForwardBatch(
            token_ids=torch.zeros(sum(new for _, new in case.lengths), dtype=torch.int64, device=device),
            positions=torch.cat(positions).to(device),
            slots=torch.cat(slots).to(device),
            wanted=torch.zeros(0, dtype=torch.int64, device=device),
            item_rows=torch.tensor(rows, device=device),
            item_ends=torch.tensor([before + new for before, new in case.lengths], device=device),
            cu_query_lens=_running_sums([new for _, new in case.lengths], device),
            page_table=table.to(device),
            rows=rows,
            starts=[before for before, _ in case.lengths],
            query_lens=[new for _, new in case.lengths],
            num_decodes=(*decodes, False).index(False),
        )

    def _fill(self, index: int) -> tuple[Tensor, Tensor]:
        """Write random K and V of an item's earlier tokens to the pool → float64 [context, kv_heads, head_dim]."""
        case, (before, _) = self._case, self._case.lengths[index]
        k, v = (self._random(before, case.kv_heads, case.head_dim).to(self.pool.data) for _ in range(2))
        where = torch.arange(before)
        pages = self.batch.page_table[self.batch.rows[index]].cpu()[where // case.page_size].long()
        slots = (pages * case.page_size + where % case.page_size).to(self.pool.device)
        self.pool.write(1, slots, k, v)
        return k.cpu().double(), v.cpu().double()


def _running_sums(lens: list[int], device: torch.device) -> Tensor:
    return torch.tensor([*accumulate(lens, initial=0)], dtype=torch.int32, device=device)


def _attend(q: Tensor, k: Tensor, v: Tensor, layer: LayerAttention, before: int) -> Tensor:
    group = layer.num_heads // layer.num_kv_heads
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = torch.einsum("qhd,khd->hqk", q, k) * layer.scale
    if layer.softcap:
        scores = layer.softcap * torch.tanh(scores / layer.softcap)
    distance = (torch.arange(q.shape[0]) + before)[:, None] - torch.arange(k.shape[0])
    hidden = (distance < 0) | (distance >= (layer.window or k.shape[0] + 1))
    scores = scores.masked_fill(hidden, -torch.inf)
    if layer.sinks is not None:
        sinks = layer.sinks.double()[:, None, None].expand(-1, q.shape[0], 1)
        scores = torch.cat([scores, sinks], -1)
    return torch.einsum("hqk,khd->qhd", scores.softmax(-1)[..., : k.shape[0]], v)
