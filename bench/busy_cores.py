"""Steps of the compiled forward pass with fixed and chosen numbers of threads, beside processes that keep cores busy.

    python bench/busy_cores.py [--threads 1 2] [--neighbours 0 1] [--seconds 15]

The model is that of bench/cpu_forward.py. The numbers of threads alternate in blocks of 32 steps, so that other load
affects all of them. A line is for one number of neighbours and one of rows: tokens per second of the mean step for each
number of threads, and for the number that is chosen step by step (model_runner/thread_counts.py).
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from cpu_forward import CPU, PAGE_SIZE, batch_of, milliseconds, random_model

from ebbtide.model_runner.attention import cpu_native
from ebbtide.model_runner.kv.kv_pool import KVPool
from ebbtide.model_runner.models.llama_native import NativeLlama

ROWS, PAST, BLOCK = (1, 8, 32), 128, 32
BUSY = "import time\nend = time.monotonic() + 60\nwhile time.monotonic() < end: pass"


@contextmanager
def busy_neighbours(count: int) -> Iterator[None]:
    """Run processes that compute without a pause."""
    processes = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def model_with(threads: int) -> NativeLlama:
    """Return a model whose steps use this number of threads."""
    torch.set_num_threads(threads)
    return NativeLlama.of(random_model())


def main() -> None:
    """Print one line per number of neighbours and of rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--neighbours", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--seconds", type=float, default=15.0)
    arguments = parser.parse_args()
    models = [model_with(threads) for threads in [*arguments.threads, max(arguments.threads)]]
    models[-1].adapt_threads()
    table = torch.randperm(32 * 16).int().view(32, 16)
    attention = cpu_native.build(KVPool(models[0].kv_shape, 32 * 16, PAGE_SIZE, dtype=torch.bfloat16, device=CPU))
    titles = "".join(f"{title:>14}" for title in (*(f"{threads} threads" for threads in arguments.threads), "chosen"))
    print(f"{'neighbours':>10} {'rows':>5}{titles}  tokens/s")
    for neighbours in arguments.neighbours:
        with busy_neighbours(neighbours):
            for rows in ROWS:
                batch = batch_of(table, [(PAST, 1)] * rows)
                times: list[list[float]] = [[] for _ in models]
                end = time.monotonic() + arguments.seconds
                while time.monotonic() < end:
                    for model, column in zip(models, times, strict=True):
                        column += [milliseconds(model, attention, batch) for _ in range(BLOCK)]
                speeds = [rows * 1000 * len(column) / sum(column) for column in times]
                print(f"{neighbours:>10} {rows:>5}" + "".join(f"{speed:14.0f}" for speed in speeds), flush=True)


if __name__ == "__main__":
    main()
