"""Checks at start that a transformers model gives the same logits with ebbtide's attention as with its own.

The check computes two sequences in chunks through the page table. The logits differ if a model needs more than
attention over its tokens, for example its own masks, biases, other positions, or a state that is carried from token to
token. To detect effects of the length with short sequences, the check also runs at the last positions of the context
and with windows of a few tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
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
SMALL_WINDOW = 5  # tokens; smaller than a row and a chunk
# The largest accepted relative error of the logits (median over the tokens). Measured errors: at most 2e-6 in float32
# over 90 architectures with random weights, and at most 0.02 in bfloat16 over ten families and SmolLM2. A wrong mask
# causes an error of tens of percent.
TOLERANCE = {torch.float32: 0.001}
HALF_TOLERANCE = 0.1


def check_against_eager(model: Any, ours: Model, attention_name: str, longest: int | None = None) -> None:
    """Raise StartupError if the logits differ. Afterwards, ``model`` uses the attention ``attention_name``.

    longest: maximum context length. If it is longer than the sequences, the last positions are also compared.
    """
    first = torch.arange(PROBE_TOKENS, device=model.device).expand(2, -1)
    _compare(model, ours, attention_name, first)
    if longest is not None and longest > 2 * PROBE_TOKENS:
        last = first + longest - PROBE_TOKENS
        # One row has low and high positions, so that frequencies that depend on the highest position change the logits.
        last = torch.stack((torch.cat((first[0, :FIRST_CHUNK], last[0, FIRST_CHUNK:])), last[1]))
        _compare(model, ours, attention_name, last)


@contextmanager
def small_windows(model: Any) -> Iterator[None]:
    """Set the sliding window in the configuration, if it has one, to ``SMALL_WINDOW`` tokens during the block."""
    config = model.config.get_text_config()
    original = getattr(config, "sliding_window", None)
    if original is None:
        yield
        return
    config.sliding_window = SMALL_WINDOW
    try:
        yield
    finally:
        config.sliding_window = original


def _compare(model: Any, ours: Model, attention_name: str, positions: Tensor) -> None:
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(ours.vocab_size, (2, PROBE_TOKENS), generator=generator).to(model.device)
    model.set_attn_implementation("eager")
    with torch.inference_mode():
        expected = [_eager(model, row, where) for row, where in zip(ids, positions, strict=True)]
        model.set_attn_implementation(attention_name)
        got = _chunked(ours, ids, positions, model)
    tolerance = TOLERANCE.get(model.dtype, HALF_TOLERANCE)
    for found, right in zip(got, _in_chunks(expected), strict=True):
        error = (found.float() - right.float()).norm(dim=-1) / right.float().norm(dim=-1)
        if not error.median() < tolerance:
            raise StartupError(
                "its logits with ebbtide's attention, computed in chunks, differ from those with its own attention"
            )


def _eager(model: Any, ids: Tensor, positions: Tensor) -> Tensor:
    is_plain = int(positions[-1]) == PROBE_TOKENS - 1
    # Without a mask, transformers would treat a jump in the positions as the start of another sequence.
    options = {} if is_plain else {"attention_mask": torch.ones(1, PROBE_TOKENS, dtype=torch.int64, device=ids.device)}
    return plain_forward(model, ids, positions, **options)


def _in_chunks(rows: list[Tensor]) -> list[Tensor]:
    """Split the logits of whole sequences like the result of ``_chunked``: the two chunks of row 0, then row 1."""
    return [rows[0][:FIRST_CHUNK], rows[0][FIRST_CHUNK:], rows[1]]


def _chunked(ours: Model, ids: Tensor, positions: Tensor, model: Any) -> list[Tensor]:
    """Return the logits of row 0's first chunk, of its second chunk, and of row 1.

    The first chunk is computed in one step, the other two together in another.
    """
    _, module = choose_backend("torch", ids.device, model.dtype)
    pool = KVPool(ours.kv_shape, 3, PAGE, dtype=model.dtype, device=ids.device)
    pool.data.fill_(100.0)  # a read of unwritten slots changes the logits
    backend = module.build(pool)
    results: list[Tensor] = []
    for items in ([(0, 0, FIRST_CHUNK)], [(0, FIRST_CHUNK, PROBE_TOKENS), (1, 0, PROBE_TOKENS)]):
        batch = _batch(ids, items)
        backend.plan(batch)  # the batch has the tokens' indices in their rows; the model gets the probed positions
        told = torch.cat([positions[row, start:end] for row, start, end in items])
        results += torch.split(ours.forward(replace(batch, positions=told), backend), batch.query_lens)
    return results


def _batch(ids: Tensor, items: list[tuple[int, int, int]]) -> ForwardBatch:
    """Return a batch of the prefill items (row, start, end). Row r has page r + 1."""
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
