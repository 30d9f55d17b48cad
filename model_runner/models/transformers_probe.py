"""The check at start that a transformers model means by its attention calls what our backends do.

Masks, biases, states carried from token to token, positions taken from elsewhere: whatever a model does beside the
attention calls shows in its logits, when two sequences run through the page table in chunks.
"""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from ebbtide.errors import StartupError

from ..attention import choose_backend
from ..batch import ForwardBatch
from ..kv.kv_pool import KVPool
from .model import Model
from .transformers_attention import plain_forward

PROBE_TOKENS = 12
PAGE = 16
FIRST_CHUNK = 7
# Relative error of the logits of a median token. Over 90 architectures with random weights had at most 2e-6 in float32,
# ten families and SmolLM2 at most 0.02 in bfloat16; a wrong mask or position makes tens of percent.
TOLERANCE = {torch.float32: 0.001}
HALF_TOLERANCE = 0.1


def check_against_eager(model: Any, ours: Model, attention_name: str) -> None:
    """Compare with the library's own attention; leaves ``model`` with ``attention_name``. Raises StartupError."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(ours.vocab_size, (2, PROBE_TOKENS), generator=generator).to(model.device)
    model.set_attn_implementation("eager")
    with torch.inference_mode():
        expected = [_eager(model, row) for row in ids]
        model.set_attn_implementation(attention_name)
        got = _chunked(ours, ids, model)
    tolerance = TOLERANCE.get(model.dtype, HALF_TOLERANCE)
    for found, right in zip(got, _in_chunks(expected), strict=True):
        error = (found.float() - right.float()).norm(dim=-1) / right.float().norm(dim=-1)
        if not error.median() < tolerance:
            raise StartupError("its logits change when its attention is replaced and its prompts come in chunks")


def _eager(model: Any, ids: Tensor) -> Tensor:
    return plain_forward(model, ids, torch.arange(PROBE_TOKENS, device=ids.device))


def _in_chunks(rows: list[Tensor]) -> list[Tensor]:
    """What ``_chunked`` returns, out of whole sequences: row 0's first chunk, its second, row 1."""
    return [rows[0][:FIRST_CHUNK], rows[0][FIRST_CHUNK:], rows[1]]


def _chunked(ours: Model, ids: Tensor, model: Any) -> list[Tensor]:
    """Logits of the first chunk of row 0, then in one step of its second chunk and of row 1."""
    _, module = choose_backend("torch", ids.device, model.dtype)
    pool = KVPool(ours.kv_shape, 3, PAGE, dtype=model.dtype, device=ids.device)
    pool.data.fill_(100.0)  # a read of what was never written shows
    backend = module.build(pool)
    results: list[Tensor] = []
    for items in ([(0, 0, FIRST_CHUNK)], [(0, FIRST_CHUNK, PROBE_TOKENS), (1, 0, PROBE_TOKENS)]):
        batch = _batch(ids, items)
        backend.plan(batch)
        results += torch.split(ours.forward(batch, backend), batch.query_lens)
    return results


def _batch(ids: Tensor, items: list[tuple[int, int, int]]) -> ForwardBatch:
    """Prefill items of (row, start, end); row r has page r + 1."""
    device = ids.device
    rows = [row for row, _, _ in items]
    lens = [end - start for _, start, end in items]
    positions = [torch.arange(start, end, device=device) for _, start, end in items]
    return ForwardBatch(
        token_ids=torch.cat([ids[row, start:end] for row, start, end in items]),
        positions=torch.cat(positions),
        slots=torch.cat([where + (row + 1) * PAGE for row, where in zip(rows, positions, strict=True)]),
        wanted=torch.arange(sum(len(where) for where in positions), device=device),
        item_rows=torch.tensor(rows, device=device),
        item_ends=torch.tensor([end for _, _, end in items], device=device),
        cu_query_lens=torch.tensor([*accumulate(lens, initial=0)], dtype=torch.int32, device=device),
        page_table=torch.tensor([[1], [2]], dtype=torch.int32, device=device),
        rows=rows,
        starts=[start for _, start, _ in items],
        query_lens=lens,
        num_decodes=0,
    )
