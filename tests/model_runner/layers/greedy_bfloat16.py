"""Prints the greedy tokens of a checkpoint in bfloat16 as JSON. A program, because oneDNN reads its settings once."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from ebbtide.messages import SamplingParams

from ..driver import Driver, load_runner

PROMPTS = [[5, 9, 100, 44, 3], [(7 * i) % 500 + 3 for i in range(40)]]


def greedy_tokens(folder: Path) -> list[list[int]]:
    """Eight tokens per prompt."""
    runner = load_runner(folder, dtype="bfloat16")
    return Driver(runner).generate(PROMPTS, SamplingParams(max_tokens=8, temperature=0))


if __name__ == "__main__":
    print(json.dumps(greedy_tokens(Path(sys.argv[1]))))
