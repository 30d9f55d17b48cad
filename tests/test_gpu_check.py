"""The program that measures CUDA, run with a tiny model on the CPU."""

from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

TOOLS = Path(__file__).resolve().parent.parent / "tools"


@pytest.fixture
def gpu_check(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module tools/gpu_check.py, imported with tools/ on the import path, as when it runs as a program."""
    monkeypatch.setattr(sys, "path", [str(TOOLS), *sys.path])
    return import_module("gpu_check")


def test_a_dry_run_measures_a_tiny_model(gpu_check: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "found.json"
    assert gpu_check.main(["--dry-run", "--out", str(path)]) == 0
    report = json.loads(path.read_text())
    assert report["failures"] == []
    assert "no attention backend 'flash_attn' for cpu" in report["variants"]["flash_attn"]["skipped"]
    found = report["variants"]["torch"]
    assert set(found["decode"]) == {"1", "3"}
    for row in found["decode"].values():
        assert row["idle_share"] is None
        assert min(row["step_seconds"], row["tokens_per_s"], row["roofline_share"]) > 0
    assert found["prefill"]["tokens_per_s"] > 0
    table = capsys.readouterr().out
    assert "decode 3" in table
    assert "skipped: There is no attention backend" in table


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_device_the_status_says_so(
    gpu_check: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "found.json"
    assert gpu_check.main(["--out", str(path)]) == gpu_check.NO_DEVICE
    assert "no CUDA device" in capsys.readouterr().err
    assert not path.exists()


@pytest.mark.parametrize(
    ("spans", "share"),
    [
        ([], None),
        ([(0.0, 10.0)], 0.0),
        ([(0.0, 2.0), (4.0, 8.0)], 0.25),
        ([(0.0, 8.0), (1.0, 2.0), (6.0, 10.0)], 0.0),
        ([(0.0, 1.0), (0.5, 1.0), (3.0, 4.0)], 0.5),
    ],
)
def test_idle_time_is_what_no_kernel_covers(
    gpu_check: Any, spans: list[tuple[float, float]], share: float | None
) -> None:
    assert gpu_check.gpu_steps.idle_share(spans) == share
