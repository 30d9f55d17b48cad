"""The sampling kernel without a GPU. Run by test_triton_kernels.py in a process with TRITON_INTERPRET=1."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from ebbtide.model_runner.sampling import triton_sampler
from ebbtide.model_runner.sampling.row_draws import RowDraws, sample_rows
from ebbtide.model_runner.sampling.sampler import INVALID_LOGITS
from ebbtide.model_runner.sampling.top_p_top_k import DrawInputs, MinPInputs, TopInputs, draw_with_torch

VOCAB = 203
INF = float("inf")


def draws(num_rows: int, **changes: Tensor) -> RowDraws:
    """Parameters of rows that differ only in the uniform number. changes: parameters to replace."""
    values = {
        "temperatures": torch.ones(num_rows),
        "uniforms": (torch.arange(num_rows, dtype=torch.float64) + 0.37) / num_rows,
        "limits": torch.full((num_rows,), VOCAB),
        "shares": torch.ones(num_rows),
        "least": torch.zeros(num_rows),
        "num_ids": torch.tensor([VOCAB]),
    }
    return RowDraws(**(values | changes))


def random_logits(num_rows: int, dtype: torch.dtype = torch.float32, spread: float = 3.0) -> Tensor:
    return (torch.randn(num_rows, VOCAB, generator=torch.Generator().manual_seed(4)) * spread).to(dtype)


def expected(logits: Tensor, inputs: RowDraws) -> list[int]:
    """Choose in float64: the first id at which the cumulative probability of the allowed ids exceeds its target."""
    found = []
    for row, values in enumerate(logits[:, : int(inputs.num_ids)].double()):
        temperature = float(inputs.temperatures[row])
        if temperature == 0:
            found.append(int(values.argmax()))
            continue
        weights = ((values - values.max()) / temperature).exp()
        order = sorted(range(len(weights)), key=lambda index: (-float(weights[index]), index))
        order = order[: int(inputs.limits[row])]
        wanted = float(inputs.shares[row]) * float(weights[order].sum())
        sums = weights[order].cumsum(0)
        if float(inputs.shares[row]) < 1:
            order = order[: int((sums < wanted).sum()) + 1]
        allowed = torch.zeros_like(weights)
        allowed[order] = weights[order]
        allowed[weights < float(inputs.least[row])] = 0
        sums = allowed.cumsum(0)
        found.append(int((sums <= float(inputs.uniforms[row]) * float(sums[-1])).sum()))
    return found


CASES: dict[str, dict[str, Tensor]] = {
    "greedy": {"temperatures": torch.zeros(5)},
    "cold and hot": {"temperatures": torch.linspace(0.2, 3, 5)},
    "top_k": {"limits": torch.tensor([1, 2, 13, 55, 202])},
    "top_p": {"shares": torch.tensor([0.05, 0.4, 0.7, 0.9, 0.999])},
    "top_k and top_p": {"limits": torch.arange(1, 6) * 9, "shares": torch.linspace(0.9, 0.3, 5)},
    "min_p": {"least": torch.linspace(0.01, 1.0, 5)},
    "everything": {
        "temperatures": torch.linspace(0, 2, 5),
        "limits": torch.arange(1, 6) * 20,
        "shares": torch.linspace(0.99, 0.5, 5),
        "least": torch.linspace(0, 0.1, 5),
        "num_ids": torch.tensor([150]),
    },
}


QUICK = {"top_k and top_p", "everything"}  # the interpreter is slow: the other cases have the mark soak


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.soak) for name in CASES]
)
@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.bfloat16, marks=pytest.mark.soak)])
def test_the_kernel_chooses_as_in_float64(name: str, dtype: torch.dtype) -> None:
    logits, inputs = random_logits(5, dtype), draws(5, **CASES[name])
    found = triton_sampler.sample_rows_with_triton(logits, inputs, block=128)
    assert found.tolist() == expected(logits, inputs)
    assert found.tolist() == sample_rows(logits, inputs).tolist()


def test_of_equal_logits_those_with_small_ids_are_kept() -> None:
    logits = torch.zeros(6, VOCAB)
    logits[:, 50:] = -1.0
    logits[:, :60:2] = -2.0
    limits = torch.tensor([7, 7, 7, VOCAB, VOCAB, VOCAB])
    shares = torch.tensor([1.0, 1.0, 1.0, 0.1, 0.1, 0.1])
    inputs = draws(6, limits=limits, shares=shares, uniforms=torch.tensor([0.0, 0.5, 0.999] * 2).double())
    found = triton_sampler.sample_rows_with_triton(logits, inputs, block=16).tolist()
    assert found == expected(logits, inputs) == sample_rows(logits, inputs).tolist()
    assert found[:3] == [1, 7, 13]


@pytest.mark.parametrize(("value", "temperature"), [(float("nan"), 1.0), (INF, 0.0)])
def test_invalid_logits_have_no_token(value: float, temperature: float) -> None:
    logits = random_logits(4)
    logits[1, 130] = value
    logits[2] = -INF
    logits[3, 202] = value
    temperatures = torch.full((4,), temperature)
    inputs = draws(4, temperatures=temperatures, num_ids=torch.tensor([202]))
    found = triton_sampler.sample_rows_with_triton(logits, inputs, block=128)
    assert found.tolist()[1:3] == [INVALID_LOGITS] * 2
    assert min(found[0], found[3]) >= 0
    assert found.tolist() == sample_rows(logits, inputs).tolist()


def test_banned_ids_are_not_drawn() -> None:
    logits = random_logits(7)
    logits[:, 3:] = -INF
    found = triton_sampler.sample_rows_with_triton(logits, draws(7), block=128)
    assert set(found.tolist()) <= {0, 1, 2}


def test_a_row_may_be_a_view_with_a_gap() -> None:
    logits = random_logits(8)
    wide = torch.full((8, VOCAB + 9), INF)
    wide[:, :VOCAB] = logits
    inputs = draws(8, limits=torch.full((8,), 30))
    assert triton_sampler.sample_rows_with_triton(wide[:, :VOCAB], inputs, block=128).tolist() == expected(
        logits, inputs
    )


def test_drawn_rows_of_the_sampler_are_those_of_torch() -> None:
    logits, rows = random_logits(9), torch.arange(9)
    inputs = DrawInputs(
        rows,
        torch.full((9,), 0.8),
        (rows.double() + 0.5) / 9,
        TopInputs(rows[::2], torch.tensor([3, VOCAB, 40, 50, 60]), torch.tensor([1.0, 0.3, 0.9, 0.5, 0.2])),
        MinPInputs(rows[1::3], torch.tensor([0.1, 0.2, 0.3])),
    )
    assert triton_sampler.draw_with_triton(logits, inputs).tolist() == draw_with_torch(logits, inputs).tolist()
