"""Linear layers in bfloat16 with and without oneDNN's packed weights."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from ebbtide.model_runner.layers.linear import Linear

from .greedy_bfloat16 import greedy_tokens

ROOT = Path(__file__).parents[3]


def refuse(*_: object) -> None:
    raise RuntimeError("bf16 path needs the cpu support avx_ne_convert or avx512bw, avx512vl and avx512dq")


@pytest.mark.parametrize("operation", ["_reorder_linear_weight", "_linear_pointwise"])
def test_a_weight_that_cannot_be_packed_stays_as_it_is(operation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    weight, x = torch.randn(32, 64).bfloat16(), torch.randn(3, 64).bfloat16()
    layer = Linear(weight)
    with monkeypatch.context() as patch:
        patch.setattr(torch.ops.mkldnn, operation, refuse)
        layer.pack()
    assert layer.weight is weight
    assert torch.equal(layer(x), torch.nn.functional.linear(x, weight))
    assert layer.num_bytes == 32 * 64 * 2


def test_bfloat16_runs_on_a_cpu_without_avx512(tiny: Callable[[str], Path]) -> None:
    """With oneDNN limited to AVX2, the output is that of the packed weights."""
    command = [sys.executable, "-m", "tests.model_runner.layers.greedy_bfloat16", str(tiny("llama"))]
    environment = os.environ | {"ONEDNN_MAX_CPU_ISA": "AVX2", "OMP_NUM_THREADS": "1"}
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout.splitlines()[-1]) == greedy_tokens(tiny("llama"))
