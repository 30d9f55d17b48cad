"""Checks and measures the CUDA code on one machine: the tests in tests/gpu, then decode and prefill of a model with the
shape of Llama 3.1 8B and random weights. Needs no network and no model.

    python tools/gpu_check.py [--out gpu-check.json] [--skip-tests]
    python tools/gpu_check.py --dry-run      # a tiny model on the CPU: checks this program, measures nothing useful

Exit status: 0 if everything passed, 1 if something failed, 3 if there is no CUDA device.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import gpu_steps
import torch

NO_DEVICE = 3
TEST_SECONDS = 150
GIB = 1 << 30


@dataclass(frozen=True)
class Scale:
    """What is measured."""

    config: dict[str, Any]
    device: str
    dtype: str
    batches: tuple[int, ...]
    context: int
    prefill: int
    num_steps: int
    variants: dict[str, dict[str, Any]]


LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LLAMA_8B = LLAMA | {
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
}
TINY = LLAMA | {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 256,
    "max_position_embeddings": 512,
}
ON_GPU = Scale(
    LLAMA_8B,
    "cuda",
    "bfloat16",
    batches=(1, 32, 256),
    context=1024,
    prefill=8192,
    num_steps=40,
    variants={
        "triton": {"attention_backend": "triton"},
        "triton, no graphs": {"attention_backend": "triton", "disable_cuda_graph": True},
        "flash_attn": {"attention_backend": "flash_attn"},
    },
)
DRY_RUN = Scale(
    TINY,
    "cpu",
    "float32",
    batches=(1, 3),
    context=40,
    prefill=100,
    num_steps=3,
    variants={"torch": {"attention_backend": "torch"}, "flash_attn": {"attention_backend": "flash_attn"}},
)


@dataclass
class Report:
    """Everything that is written to the JSON file."""

    machine: dict[str, Any] = field(default_factory=dict)
    tests: dict[str, Any] = field(default_factory=dict)
    variants: dict[str, Any] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    seconds: float = 0.0


def main(arguments: list[str] | None = None) -> int:
    """Run the checks and print a table; returns the exit status."""
    parser = argparse.ArgumentParser(description="check and measure the CUDA code")
    parser.add_argument("--out", type=Path, default=Path("gpu-check.json"), help="JSON file to write")
    parser.add_argument("--skip-tests", action="store_true", help="do not run tests/gpu")
    parser.add_argument("--dry-run", action="store_true", help="run a tiny model on the CPU")
    args = parser.parse_args(arguments)
    if not args.dry_run and not torch.cuda.is_available():
        print("There is no CUDA device: nothing was checked.", file=sys.stderr)
        return NO_DEVICE
    started = time.monotonic()
    scale = DRY_RUN if args.dry_run else ON_GPU
    report = Report(machine=_machine(scale))
    if not args.dry_run and not args.skip_tests:
        report.tests = _run_tests()
        if report.tests["status"]:
            report.failures.append(f"tests/gpu: {report.tests['last_line']}")
    for name, options in scale.variants.items():
        _measure(name, options, scale, report)
        report.seconds = time.monotonic() - started
        args.out.write_text(json.dumps(asdict(report), indent=1))  # after each variant, because a later one may hang
    print(_table(report))
    return 1 if report.failures else 0


def _machine(scale: Scale) -> dict[str, Any]:
    device = torch.device(scale.device)
    found: dict[str, Any] = {"torch": torch.__version__, "device": scale.device, "scale": asdict(scale)}
    if device.type == "cuda":
        found["device"] = torch.cuda.get_device_name(device)
        found["cuda"] = torch.version.cuda
    found["copy_bytes_per_s"] = gpu_steps.copy_bandwidth(device, (4 * GIB) if device.type == "cuda" else (1 << 20))
    return found


def _run_tests() -> dict[str, Any]:
    """Run tests/gpu in a separate process."""
    root = Path(__file__).resolve().parent.parent
    command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "-W", "default", "tests/gpu"]
    started = time.monotonic()
    try:
        run = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=TEST_SECONDS, check=False)
        status, output = run.returncode, run.stdout + run.stderr
    except subprocess.TimeoutExpired as error:
        status, output = 1, f"{(error.stdout or b'').decode(errors='replace')}\nnot finished after {TEST_SECONDS} s"
    lines = output.strip().splitlines() or ["no output"]
    return {
        "status": status,
        "last_line": lines[-1],
        "output": output[-8000:],
        "seconds": time.monotonic() - started,
    }


def _measure(name: str, options: dict[str, Any], scale: Scale, report: Report) -> None:
    """Add the measurements of one variant; a failure ends this variant only."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(scale.config))
        settings = {"device": scale.device, "dtype": scale.dtype} | options
        try:
            runner = gpu_steps.load(folder, max_batch=max(scale.batches), **settings)
        except gpu_steps.StartupError as error:
            report.variants[name] = {"skipped": str(error)}
            return
        found = report.variants[name] = {"load_seconds": runner.load_seconds, "decode": {}}
        bandwidth = report.machine["copy_bytes_per_s"]
        try:
            for batch in scale.batches:
                found["decode"][str(batch)] = runner.decode(batch, scale.context, scale.num_steps, bandwidth)
            found["prefill"] = runner.prefill(scale.prefill)
            found["peak_bytes"] = runner.peak_bytes()
        except Exception as error:
            report.failures.append(f"{name}: {type(error).__name__}: {error}")


def _table(report: Report) -> str:
    """Return the results as text."""
    copied = report.machine["copy_bytes_per_s"] / 1e9
    lines = [f"{report.machine['device']}, torch {report.machine['torch']}, copies {copied:.0f} GB/s"]
    if report.tests:
        lines.append(f"tests/gpu: {report.tests['last_line']}")
    lines.append(f"{'variant':<20}{'step':<12}{'ms':>9}{'tokens/s':>12}{'idle':>8}{'of roofline':>13}")
    for name, found in report.variants.items():
        if "skipped" in found:
            lines.append(f"{name:<20}skipped: {found['skipped']}")
            continue
        for batch, row in found["decode"].items():
            idle = "–" if row["idle_share"] is None else f"{row['idle_share']:.0%}"
            speed = f"{row['step_seconds'] * 1e3:>9.2f}{row['tokens_per_s']:>12.0f}"
            lines.append(f"{name:<20}{'decode ' + batch:<12}{speed}{idle:>8}{row['roofline_share']:>13.0%}")
        if "prefill" in found:
            row = found["prefill"]
            speed = f"{row['seconds'] * 1e3:>9.1f}{row['tokens_per_s']:>12.0f}"
            lines.append(f"{name:<20}{'prefill':<12}{speed}")
    lines += [f"FAILED {failure}" for failure in report.failures]
    return "\n".join([*lines, f"{report.seconds:.0f} s"])


if __name__ == "__main__":
    sys.exit(main())
