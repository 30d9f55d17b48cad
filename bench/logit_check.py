"""Cost of the check that logits are finite, as part of choosing tokens from them.

    python bench/logit_check.py [--rows 32] [--vocab 49152] [--rounds 300] [--json]

Median microseconds of CPU time per step without and with the check, measured in turn, and the median of the ratios.
"plain" rows are greedy, so the largest logit is known anyway. "changed" rows have penalties, masks or biases, so the
raw logits are read once more.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

INVALID = -2


def choose(adjusted: Tensor, logits: Tensor) -> Tensor:
    """The tokens without a check."""
    return adjusted.max(-1)[1]


def choose_plain(adjusted: Tensor, logits: Tensor) -> Tensor:
    """The tokens of unchanged logits, INVALID if a row is not finite."""
    peaks, tokens = adjusted.max(-1)
    return tokens.masked_fill_(~peaks.isfinite(), INVALID)


def choose_changed(adjusted: Tensor, logits: Tensor) -> Tensor:
    """The same for changed logits: the raw ones count too."""
    peaks, tokens = adjusted.max(-1)
    invalid = ~peaks.isfinite()
    invalid |= ~logits.amax(-1).isfinite()
    return tokens.masked_fill_(invalid, INVALID)


def cpu_us(work: Callable[[Tensor, Tensor], Tensor], adjusted: Tensor, logits: Tensor) -> float:
    """The CPU time of one call."""
    started = time.thread_time()
    work(adjusted, logits)
    return (time.thread_time() - started) * 1e6


def main() -> None:
    """Measure both kinds of rows and print a line for each."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--vocab", type=int, default=49152)
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    logits = torch.randn(options.rows, options.vocab)
    adjusted = logits.clone()
    results = {}
    for name, checked in (("plain", choose_plain), ("changed", choose_changed)):
        pairs = [
            (cpu_us(choose, adjusted, logits), cpu_us(checked, adjusted, logits)) for _ in range(options.rounds + 5)
        ][5:]
        without, with_check = (statistics.median(column) for column in zip(*pairs, strict=True))
        ratio = statistics.median(after / before for before, after in pairs)
        results[name] = {"without_us": without, "with_us": with_check, "ratio": ratio}
        if not options.json:
            print(f"{name:8} {without:8.0f} us without, {with_check:8.0f} us with the check, ratio {ratio:.3f}")
    if options.json:
        print(json.dumps(results))


if __name__ == "__main__":
    main()
