"""The compiled CPU backend: behavior without a compiler, and page and head sizes that other tests do not cover."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch

from ebbtide.errors import StartupError
from ebbtide.model_runner.attention import LayerAttention, choose_backend
from ebbtide.model_runner.batch import ForwardBatch
from ebbtide.model_runner.kv.kv_pool import KVPool, KVShape

CPU = torch.device("cpu")


@pytest.mark.parametrize(("compiler", "reason"), [("/nowhere/c++", "needs a C"), ("false", "the compiler failed")])
def test_without_a_working_compiler_torch_takes_over(
    compiler: str,
    reason: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("CXX", compiler)
    monkeypatch.setenv("EBBTIDE_CACHE", str(tmp_path))
    with caplog.at_level(logging.INFO):
        assert choose_backend("auto", CPU, torch.float32)[0] == "torch"
    assert [reason in message for message in caplog.messages if not message.startswith("compiling")] == [True]
    with pytest.raises(StartupError, match=reason):
        choose_backend("cpu", CPU, torch.float32)


def test_a_built_kernel_needs_no_second_build(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("EBBTIDE_CACHE", str(tmp_path))
    choose_backend("cpu", CPU, torch.float32)
    (built,) = (tmp_path / "kernels").iterdir()
    before = built.stat().st_mtime_ns
    choose_backend("cpu", CPU, torch.bfloat16)
    assert built.stat().st_mtime_ns == before


def decode_batch(ends: list[int], page_size: int) -> ForwardBatch:
    """Decode items with contexts of the given lengths and scattered pages."""
    width = -(-max(ends) // page_size)
    table = torch.randperm(len(ends) * width, generator=torch.Generator().manual_seed(2))
    table = table.view(len(ends), width).int()
    rows, lengths = torch.arange(len(ends)), torch.tensor(ends)
    positions = lengths - 1
    slots = table[rows, positions // page_size].long() * page_size + positions % page_size
    lens = [1] * len(ends)
    starts = positions.tolist()
    sums = torch.arange(len(ends) + 1, dtype=torch.int32)
    return ForwardBatch(
        rows, positions, slots, rows, rows, lengths, sums, table, rows.tolist(), starts, lens, num_decodes=len(ends)
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("page_size", [1, 12, 64])
@pytest.mark.parametrize("head_dim", [8, 64, 96, 128])
@pytest.mark.parametrize("window", [None, 5])
def test_decode_agrees_with_the_reference(
    dtype: torch.dtype, page_size: int, head_dim: int, window: int | None
) -> None:
    ends = [1, 5, 64, 131]
    batch = decode_batch(ends, page_size)
    layer = LayerAttention(1, 6, 2, head_dim, head_dim**-0.5, window=window)
    generator = torch.Generator().manual_seed(1)
    pool_data = torch.randn(2, 2, batch.page_table.numel() * page_size, 2, head_dim, generator=generator).to(dtype)
    heads = torch.randn(len(ends), 10, head_dim, generator=generator).to(dtype)
    q, k, v = torch.split(heads, [6, 2, 2], 1)
    results = []
    for name in ("torch", "cpu"):
        pool = KVPool(KVShape(2, 2, head_dim), batch.page_table.numel(), page_size, dtype=dtype, device=CPU)
        pool.data.copy_(pool_data)
        backend = choose_backend(name, CPU, dtype)[1].build(pool)
        backend.plan(batch)
        results.append((backend.forward(q, k, v, layer).float(), pool.data))
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(results[1][0], results[0][0], rtol=tolerance, atol=tolerance)
    assert torch.equal(results[1][1], results[0][1])
