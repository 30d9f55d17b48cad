"""Time of a decode step on the CPU against the number of rows and the length of the context, with its lower bound.

    python bench/cpu_scaling.py [--threads 2] [--rounds 5] [--weights bfloat16|int8|Q4_1] [--json FILE] [--png FILE]

The model is that of bench/cpu_forward.py. The lower bound of a step is the larger of two times: the bytes of weights
and K/V that it reads, divided by the memory bandwidth, and its multiplications and additions, divided by the arithmetic
speed. The bandwidth is measured with a sum over 1 GiB; the speed with torch's product of two large bfloat16 matrices,
also for quantized weights. ``--png`` needs matplotlib.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from cpu_forward import CPU, PAGE_SIZE, WEIGHTS, batch_of, milliseconds, model_with

from ebbtide.model_runner.attention import cpu_native
from ebbtide.model_runner.kernels.native_build import VECTORS
from ebbtide.model_runner.kv.kv_pool import KVPool
from ebbtide.model_runner.models.llama_native import NativeLlama

ROWS = (1, 2, 4, 8, 16, 32, 64, 128)
CONTEXTS = (64, 256, 1024, 2048, 4096, 8192)
SHORT, CONTEXT_ROWS = 128, (1, 8, 32)
MATRIX = 2048


@dataclass(frozen=True, slots=True)
class Machine:
    """The measured speed of the machine. bandwidth: bytes/s. speed: multiplications and additions per second."""

    bandwidth: float
    speed: float

    @classmethod
    def measure(cls) -> Machine:
        """Measure this machine. Takes a few seconds."""
        numbers = torch.ones(1 << 28)
        a, b = torch.ones(2, MATRIX, MATRIX, dtype=torch.bfloat16)
        return cls(numbers.nbytes / best_s(numbers.sum), 2 * MATRIX**3 / best_s(lambda: a @ b))

    def bound_ms(self, model: NativeLlama, rows: int, context: int) -> float:
        """Return the least time of a step in milliseconds."""
        token_bytes = model.kv_shape.token_bytes(torch.bfloat16)
        read = model.weight_bytes + rows * context * token_bytes
        per_key = token_bytes // torch.bfloat16.itemsize * (9 // 3)  # each key and value serves three heads
        work = 2 * rows * (model.num_weights + context * per_key)
        return 1000 * max(read / self.bandwidth, work / self.speed)


@dataclass(frozen=True, slots=True)
class Point:
    """One measured step."""

    rows: int
    context: int
    step_ms: float
    bound_ms: float


def best_s(work: Callable[[], object], rounds: int = 7) -> float:
    """Return the shortest time of ``rounds`` runs, in seconds."""
    times = []
    for _ in range(rounds):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return min(times)


def measure(model: NativeLlama, machine: Machine, rounds: int) -> list[Point]:
    """Measure all steps, and print each result."""
    cases = [(rows, SHORT) for rows in ROWS] + [(rows, context) for rows in CONTEXT_ROWS for context in CONTEXTS]
    points = []
    for rows, context in cases:
        width = -(-(context + 1) // PAGE_SIZE)
        pool = KVPool(model.kv_shape, rows * width, PAGE_SIZE, dtype=torch.bfloat16, device=CPU)
        attention = cpu_native.build(pool)
        batch = batch_of(torch.randperm(rows * width).int().view(rows, width), [(context, 1)] * rows)
        step_ms = min([milliseconds(model, attention, batch) for _ in range(rounds + 1)][1:])
        points.append(Point(rows, context, step_ms, machine.bound_ms(model, rows, context)))
        print(f"{rows:4} rows after {context:5}: {step_ms:8.1f} ms, bound {points[-1].bound_ms:7.1f} ms", flush=True)
    return points


def draw(points: list[Point], file: Path) -> None:
    """Draw both plots into one picture."""
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4.2), sharey=True)
    by_rows = points[: len(ROWS)]
    left.plot(ROWS, [point.step_ms for point in by_rows], "o-", label="measured")
    left.plot(ROWS, [point.bound_ms for point in by_rows], "k--", label="bound")
    left.set(xlabel=f"rows (context of {SHORT} tokens)", ylabel="decode step, ms", xscale="log", yscale="log")
    for rows in CONTEXT_ROWS:
        some = [point for point in points[len(ROWS) :] if point.rows == rows]
        (line,) = right.plot(CONTEXTS, [point.step_ms for point in some], "o-", label=f"{rows} rows")
        right.plot(CONTEXTS, [point.bound_ms for point in some], "--", color=line.get_color())
    right.set(xlabel="context, tokens (dashed: bound)", xscale="log")
    for axes, ticks in ((left, ROWS), (right, CONTEXTS)):
        axes.set_xticks(ticks, [str(tick) for tick in ticks])
        axes.minorticks_off()
        axes.grid(alpha=0.3)
        axes.legend()
    figure.tight_layout()
    figure.savefig(file, dpi=110)


def main() -> None:
    """Measure, print and draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--weights", choices=WEIGHTS[1:], default="bfloat16")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--png", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    machine = Machine.measure()
    print(f"bandwidth {machine.bandwidth / 1e9:.1f} GB/s, {machine.speed / 1e9:.0f} GFLOP/s in bfloat16")
    model = model_with(arguments.weights, VECTORS)
    assert isinstance(model, NativeLlama)
    points = measure(model, machine, arguments.rounds)
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(point) for point in points], indent=1))
    if arguments.png:
        draw(points, arguments.png)


if __name__ == "__main__":
    main()
