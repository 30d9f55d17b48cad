"""Measures the time until a daemon is ready, and the processor time and memory of its processes at that moment.

    python bench/start.py [TREE …] [--model smollm2] [--rounds 3]

TREE is a checkout of ebbtide, by default this one. Several trees start in turns, so that other load affects
all of them. The memory is the proportional set size: shared pages are divided among the processes that map them.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

import psutil


def measure(tree: str, model: str) -> str:
    """Start a daemon, stop it when it is ready, and return one line of figures."""
    started = time.monotonic()
    daemon = subprocess.Popen(
        [sys.executable, "-P", "-m", "ebbtide.server.cli", "serve", model, "--port", "0"],
        env=os.environ | {"PYTHONPATH": tree},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    try:
        assert daemon.stdout is not None
        assert daemon.stdout.readline(), "the daemon ended before it was ready"
        ready_s = time.monotonic() - started
        family = [psutil.Process(daemon.pid), *psutil.Process(daemon.pid).children()]
        parts = []
        for process in family:
            times = process.cpu_times()
            name = process.cmdline()[0].removeprefix("ebbtide::") if process.pid != daemon.pid else "front"
            parts.append(f"{name} {times.user + times.system:.1f} s {process.memory_full_info().pss / 2**20:.0f} MiB")
        return f"{tree}: ready after {ready_s:.1f} s; {', '.join(parts)}"
    finally:
        daemon.terminate()
        daemon.wait()


def main() -> None:
    """Print one line per start."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trees", nargs="*", metavar="TREE", default=[str(Path(__file__).resolve().parent.parent)])
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    for _ in range(arguments.rounds):
        for tree in arguments.trees:
            print(measure(tree, arguments.model), flush=True)


if __name__ == "__main__":
    main()
