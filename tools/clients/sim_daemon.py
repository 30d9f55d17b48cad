"""A daemon of this checkout with the simulated model and scripted answers."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from answers import Rule

ROOT = Path(__file__).resolve().parents[2]
START_S = 120.0
STOP_S = 30.0
# One token is one byte, and an agent's first prompt has 80,000 bytes.
SIZES = ("--context-length", "400000", "--max-total-tokens", "1000000")


@contextmanager
def sim_daemon(rules: list[Rule], flags: tuple[str, ...], log: Path) -> Iterator[str]:
    """Run a daemon and yield its URL. Raises RuntimeError if it does not start."""
    with tempfile.TemporaryDirectory(prefix="ebb-") as folder, log.open("w") as log_file:
        script = Path(folder) / "script.json"
        script.write_text(json.dumps(rules))
        command = [sys.executable, "-m", "ebbtide.server.cli", "serve", "sim", "--port", "0", *SIZES, *flags]
        process = subprocess.Popen(
            [*command, "--sim-script", str(script), "--log-level", "debug"],
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=log_file,
            text=True,
        )
        try:
            yield _url(process, log)
        finally:
            process.terminate()
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
            if process.stdout is not None:
                process.stdout.close()


def _url(process: subprocess.Popen[str], log: Path) -> str:
    timer = threading.Timer(START_S, process.kill)
    timer.start()
    try:
        for line in process.stdout or ():
            found = re.search(r" on (http://\S+)", line)
            if found is not None:
                return found[1]
    finally:
        timer.cancel()
    raise RuntimeError(f"the daemon did not start:\n{log.read_text()[-3000:]}")
