"""The Triton kernels without a GPU. Run by test_triton_paged.py in a process with TRITON_INTERPRET=1."""

from __future__ import annotations

import pytest
import torch

from ebbtide.model_runner.attention.triton_paged import build

from .agreement import CASES, Step

CPU = torch.device("cpu")


@pytest.mark.parametrize("name", CASES)
def test_the_kernels_give_the_attention_that_is_written_out(name: str) -> None:
    step = Step(CASES[name], device=CPU)
    torch.testing.assert_close(step.run(build(step.pool)).double(), step.truth(), rtol=1e-4, atol=1e-4)


def test_keys_and_values_land_in_their_slots() -> None:
    step = Step(CASES["page size 16"], device=CPU)
    step.run(build(step.pool))
    assert torch.equal(step.stored(), torch.stack([step.k, step.v]))


def test_an_item_gets_the_same_result_whoever_runs_beside_it() -> None:
    step = Step(CASES["splits"], device=CPU)
    together = step.run(build(step.pool))
    alone = step.alone(0)
    assert torch.equal(alone.run(build(alone.pool)), together[:1])


def test_inputs_may_be_views_with_gaps() -> None:
    step = Step(CASES["page size 16"], device=CPU)
    expected = step.run(build(step.pool))
    joined = torch.cat([step.q, step.k, step.v], dim=1)
    step.q, step.k, step.v = torch.split(joined, [4, 2, 2], dim=1)
    assert torch.equal(step.run(build(step.pool)), expected)
