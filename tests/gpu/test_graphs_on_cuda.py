"""Captured graphs and the fused kernels on a device, compared with single launches and with torch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from ebbtide.messages import SamplingParams
from ebbtide.model_runner.layers.ops import TorchOps, choose_ops
from ebbtide.model_runner.sampling.row_draws import RowDraws, sample_rows
from ebbtide.model_runner.sampling.sampling_functions import sampling_functions

from ..model_runner.checkpoints import write_checkpoint
from ..model_runner.driver import Driver, load_runner
from ..model_runner.test_graphs import MAX_ROWS, prompts, random_params, special_params

pytestmark = pytest.mark.gpu
CUDA = torch.device("cuda")
VOCAB = 128_256


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("params", [random_params, special_params])
def test_graphs_give_the_tokens_of_single_launches(
    params: Callable[[int], SamplingParams], overlap: bool, tmp_path: Path
) -> None:
    folder = write_checkpoint(tmp_path, "qwen3")
    sampling = [params(row) for row in range(MAX_ROWS)]
    options = {"device": "cuda", "attention_backend": "triton", "max_running_requests": MAX_ROWS}
    runners = [
        load_runner(folder, disable_cuda_graph=not graphs, disable_overlap_schedule=not overlap, **options)
        for graphs in (True, False)
    ]
    assert runners[0]._graphs is not None
    assert runners[1]._graphs is None
    found, expected = (Driver(runner, chunk=40).generate(prompts(), sampling) for runner in runners)
    assert found == expected


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_sampling_kernel_chooses_as_torch_does(dtype: torch.dtype) -> None:
    rows = 32
    logits = (torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(1)) * 3).to(CUDA, dtype)
    draws = RowDraws(
        temperatures=torch.linspace(0, 1.5, rows, device=CUDA),
        uniforms=(torch.arange(rows, device=CUDA).double() + 0.4) / rows,
        limits=torch.full((rows,), VOCAB, device=CUDA).where(torch.arange(rows, device=CUDA) % 2 == 0, 40),
        shares=torch.linspace(1.0, 0.5, rows, device=CUDA),
        least=torch.zeros(rows, device=CUDA),
        num_ids=torch.full((1,), VOCAB - 256, device=CUDA),
    )
    found = sampling_functions(CUDA).sample_rows(logits, draws)
    assert found.tolist() == sample_rows(logits, draws).tolist()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_layer_kernels_compute_what_torch_does(dtype: torch.dtype) -> None:
    fused, plain = choose_ops(CUDA), TorchOps()
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    heads = torch.randn(17, 40, 128, device=CUDA, dtype=dtype)
    x, added, weight = heads[:, 0], torch.randn(17, 128, device=CUDA, dtype=dtype), heads[0, 1]
    x = x.contiguous()
    angles = torch.rand(17, 1, 64, device=CUDA)
    cos = torch.cat((angles.cos(), angles.cos()), -1).to(dtype)
    sin = torch.cat((-angles.sin(), angles.sin()), -1).to(dtype)
    pairs = [
        (fused.norm(heads[:, 3:9], weight, 1e-5), plain.norm(heads[:, 3:9], weight, 1e-5)),
        *zip(fused.add_norm(x, added, weight, 1e-5), plain.add_norm(x, added, weight, 1e-5), strict=True),
        (fused.silu_mul(x), plain.silu_mul(x)),
        (fused.rotate(heads[:, :30].clone(), (cos, sin)), plain.rotate(heads[:, :30], (cos, sin))),
    ]
    for found, expected in pairs:
        torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)
