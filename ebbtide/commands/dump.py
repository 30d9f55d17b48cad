"""``ebbtide dump``: requests a state dump of a running server and prints it.

The command also works if the server hangs.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import time
from pathlib import Path

from ebbtide.runtime.socket_directory import living_daemons

from ..errors import StartupError

PROCESSES = ("front", "scheduler")
PATIENCE_S = 10.0
LOOK_S = 0.05


def run(arguments: argparse.Namespace) -> int:
    """Run ``ebbtide dump``."""
    return dump(arguments.pid)


def dump(pid: int | None = None) -> int:
    """Print the dumps of the server whose main process is ``pid``; None selects the only running server.

    Returns 1 if a process did not respond, else 0. Raises StartupError if no server matches, or if ``pid`` is None and
    several servers are running.
    """
    pid, directory = _chosen(living_daemons(), pid)
    before = {name: _age(directory, name) for name in PROCESSES}
    os.kill(pid, signal.SIGUSR1)
    deadline = time.monotonic() + PATIENCE_S
    silent = [name for name in PROCESSES if not _print_new(directory, name, before[name], deadline)]
    for name in silent:
        print(f"ebbtide: The {name} process did not answer; its log may say more.", file=sys.stderr)
    return 1 if silent else 0


def _chosen(daemons: dict[int, Path], pid: int | None) -> tuple[int, Path]:
    if pid is not None and pid not in daemons:
        raise StartupError(f"You have no running server with process id {pid}. {_known(daemons)}")
    if pid is None and len(daemons) != 1:
        raise StartupError(f"{_known(daemons)} Select one with --pid." if daemons else _known(daemons))
    chosen = next(iter(daemons)) if pid is None else pid
    return chosen, daemons[chosen]


def _known(daemons: dict[int, Path]) -> str:
    if daemons:
        return f"Running servers: {', '.join(str(pid) for pid in sorted(daemons))}."
    return f"No running server was found in {tempfile.gettempdir()} (TMPDIR)."


def _age(directory: Path, name: str) -> int | None:
    """Return the modification time of a process's dump file, in ns; None if there is no file."""
    path = directory / f"{name}.dump"
    return path.stat().st_mtime_ns if path.exists() else None


def _print_new(directory: Path, name: str, before: int | None, deadline: float) -> bool:
    while _age(directory, name) == before:
        if time.monotonic() > deadline:
            return False
        time.sleep(LOOK_S)
    print((directory / f"{name}.dump").read_text(), end="", flush=True)
    return True
