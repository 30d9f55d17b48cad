"""Runs the other files of this folder in separate processes, because Triton selects its interpreter at import."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from ebbtide.model_runner.attention.triton_paged import BLOCK_SIZES, LEAST_SPLIT, block_sizes, unavailable

HERE = Path(__file__).parent
FILES = {
    "interpreted_*.py": {"TRITON_INTERPRET": "1"},
    "compiled.py": {"TRITON_INTERPRET": "0", "TRITON_DEFAULT_FP_FUSION": "1"},
}


def run_files(pattern: str, folder: Path, *arguments: str) -> None:
    """Run the tests in the files, and fail with their output if one fails."""
    files = [str(path) for path in sorted(HERE.glob(pattern))]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments, *files]
    settings = os.environ | {"OMP_NUM_THREADS": "1", "TRITON_CACHE_DIR": str(folder)} | FILES[pattern]
    run = subprocess.run(command, env=settings, capture_output=True, text=True, timeout=3000, check=False)
    assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.parametrize("pattern", FILES)
def test_the_kernels_pass_without_a_gpu(pattern: str, tmp_path: Path) -> None:
    pytest.importorskip("triton")
    run_files(pattern, tmp_path)


@pytest.mark.soak
@pytest.mark.parametrize("pattern", FILES)
def test_the_kernels_pass_in_all_shapes(pattern: str, tmp_path: Path) -> None:
    pytest.importorskip("triton")
    run_files(pattern, tmp_path, "-m", "soak")


def test_triton_is_not_for_the_cpu() -> None:
    assert unavailable(torch.device("cpu"), torch.float32) == "it needs a CUDA device"


@pytest.mark.parametrize("head_dim", [16, 64, 80, 128, 192, 256, 512])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_head_size_has_blocks(head_dim: int, dtype: torch.dtype) -> None:
    assert min(block_sizes(head_dim, dtype)) >= 16


def test_a_split_is_a_whole_number_of_blocks() -> None:
    assert all(LEAST_SPLIT % block_n == 0 for _, block_n in BLOCK_SIZES.values())
