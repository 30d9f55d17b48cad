from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from ebbtide.model_runner.attention.triton_paged import block_sizes, unavailable

HERE = Path(__file__).parent


@pytest.mark.parametrize(
    ("file", "environment"),
    [
        ("interpreted_triton.py", {"TRITON_INTERPRET": "1"}),
        ("compiled_triton.py", {"TRITON_INTERPRET": "0", "TRITON_DEFAULT_FP_FUSION": "1"}),
    ],
)
def test_the_kernels_pass_without_a_gpu(file: str, environment: dict[str, str], tmp_path: Path) -> None:
    pytest.importorskip("triton")
    # A separate process: Triton decides at import whether it interprets, and another test may have imported it.
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(HERE / file)]
    settings = os.environ | {"OMP_NUM_THREADS": "1", "TRITON_CACHE_DIR": str(tmp_path)} | environment
    run = subprocess.run(command, env=settings, capture_output=True, text=True, timeout=300, check=False)
    assert run.returncode == 0, run.stdout + run.stderr


def test_triton_is_not_for_the_cpu() -> None:
    assert unavailable(torch.device("cpu"), torch.float32) == "it needs a CUDA device"


@pytest.mark.parametrize("head_dim", [16, 64, 80, 128, 192, 256, 512])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_head_size_has_blocks(head_dim: int, dtype: torch.dtype) -> None:
    assert min(block_sizes(head_dim, dtype)) >= 16
