"""Recurrent layers over ragged batches equal the same layers over one token at a time, in float64 where it matters."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from ebbtide.model_runner.batch import ForwardBatch
from ebbtide.model_runner.layers.short_conv import ConvIndex, causal_conv
from ebbtide.model_runner.layers.ssd import BLOCK, SsdInputs, ssd

CHANNELS, HEADS, SIZE, GROUPS, STATE = 6, 4, 3, 2, 5
LENGTHS = [[1], [1, 1, 1], [1, 1, 2, 5], [7], [BLOCK], [1, BLOCK + 1, 3], [2 * BLOCK + 5, 1]]


def batch_of(lengths: list[int]) -> ForwardBatch:
    """A batch with items of these lengths; only their lengths matter here."""
    ends = torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32)
    nothing = torch.empty(0, dtype=torch.int64)
    return ForwardBatch(
        token_ids=torch.zeros(sum(lengths), dtype=torch.int64),
        positions=nothing,
        slots=nothing,
        wanted=nothing,
        item_rows=nothing,
        item_ends=nothing,
        cu_query_lens=ends,
        page_table=nothing,
        rows=[],
        starts=[],
        query_lens=lengths,
        num_decodes=next((number for number, length in enumerate(lengths) if length > 1), len(lengths)),
    )


def random(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64)


@pytest.mark.parametrize("num_taps", [2, 3, 4])
@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_a_convolution_over_items_equals_one_token_at_a_time(lengths: list[int], num_taps: int) -> None:
    torch.manual_seed(1)
    x, weight, bias = random(sum(lengths), CHANNELS), random(CHANNELS, num_taps), random(CHANNELS)
    before = random(len(lengths), num_taps - 1, CHANNELS)
    out, after = causal_conv(x, before, weight, bias, ConvIndex.of(batch_of(lengths), num_taps))
    first = 0
    for item, length in enumerate(lengths):
        history = torch.cat((before[item], x[first : first + length]))
        for token in range(length):
            expected = (history[token : token + num_taps] * weight.T).sum(0) + bias
            assert torch.allclose(out[first + token], expected)
        assert torch.equal(after[item], history[-(num_taps - 1) :])
        first += length


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_the_recurrence_over_items_equals_one_token_at_a_time(lengths: list[int]) -> None:
    torch.manual_seed(2)
    total = sum(lengths)
    x, b, c = random(total, HEADS, SIZE), random(total, GROUPS, STATE), random(total, GROUPS, STATE)
    dt, a = torch.rand(total, HEADS, dtype=torch.float64), -torch.rand(HEADS, dtype=torch.float64)
    before = random(len(lengths), HEADS, SIZE, STATE)
    out, after = ssd(SsdInputs(x, dt, b, c), a, before, batch_of(lengths))
    token = 0
    for item, length in enumerate(lengths):
        state = before[item]
        for _ in range(length):
            each = [group.repeat_interleave(HEADS // GROUPS, 0) for group in (b[token], c[token])]
            decay = torch.exp(dt[token] * a)[:, None, None]
            state = state * decay + torch.einsum("h,hp,hs->hps", dt[token], x[token], each[0])
            assert torch.allclose(out[token], torch.einsum("hps,hs->hp", state, each[1]))
            token += 1
        assert torch.allclose(after[item], state)


def test_strong_decay_over_a_block_gives_finite_numbers() -> None:
    """The logarithms of the decay are differences: exp of the sums alone would overflow."""
    x = torch.ones(BLOCK, HEADS, SIZE)
    inputs = SsdInputs(x, torch.full((BLOCK, HEADS), 50.0), torch.ones(BLOCK, 1, STATE), torch.ones(BLOCK, 1, STATE))
    out, after = ssd(inputs, torch.full((HEADS,), -16.0), torch.ones(1, HEADS, SIZE, STATE), batch_of([BLOCK]))
    assert torch.isfinite(out).all()
    assert torch.isfinite(after).all()
