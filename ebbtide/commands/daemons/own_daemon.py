"""Finds a running server for a command, or starts a server that is stopped when the command ends."""

from __future__ import annotations

import ctypes
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ebbtide.runtime.daemon_record import DaemonRecord, living_records

from ...errors import StartupError

PR_SET_PDEATHSIG = 1
STOP_S = 15.0  # seconds after SIGTERM after which a server that has not exited is killed
READY = re.compile(r"ebbtide serves (.*) on (https?://\S+)\n")


@dataclass(frozen=True, slots=True)
class Server:
    """A server that accepts requests.

    Attributes:
        url: base URL without /v1.
        needs_key: True if requests need an API key.
    """

    url: str
    model_name: str
    needs_key: bool = False


@contextmanager
def server_for(model: str, flags: Sequence[str] = ()) -> Iterator[Server]:
    """Yield a running server that serves ``model``, or start a new one.

    A new server gets ``flags``, listens on a free port, and is stopped at the end of the block.
    Raises StartupError if the new server cannot start; the server has then printed the reason.
    """
    running = _find(model)
    if running is not None:
        yield Server(running.url, running.names[0], running.needs_key)
        return
    process = _start(model, flags)
    try:
        yield _await_ready(process, model)
    finally:
        _stop(process)


def _find(model: str) -> DaemonRecord | None:
    path = Path(model).expanduser().resolve()
    for record in living_records():
        place = Path(record.directory, record.gguf or "") if record.directory else None
        if record.is_called(model) or (place is not None and path == place.resolve()):
            return record
    return None


def _start(model: str, flags: Sequence[str]) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "ebbtide.server.cli", "serve", model, "--port", "0", "--log-level", "warning"]
    # The server runs in its own process session, so that Ctrl-C stops the answer and not the server.
    return subprocess.Popen(
        [*command, *flags], stdout=subprocess.PIPE, text=True, start_new_session=True, preexec_fn=_end_with_parent
    )


def _end_with_parent() -> None:
    """Ask the kernel to send SIGTERM to the server when the command dies, for example because it was killed."""
    if sys.platform == "linux":
        libc = ctypes.CDLL(None)
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


def _await_ready(process: subprocess.Popen[str], model: str) -> Server:
    assert process.stdout is not None
    for line in process.stdout:
        ready = READY.fullmatch(line)
        if ready is not None:
            return Server(ready[2], ready[1])
    raise StartupError(f"The server for {model} did not start (exit code {process.wait()}).")


def _stop(process: subprocess.Popen[str]) -> None:
    process.terminate()
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    assert process.stdout is not None
    process.stdout.close()
