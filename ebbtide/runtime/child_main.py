"""Runs a child process of a daemon: receives its configuration, reports its status. The parent's side is child.py."""

from __future__ import annotations

import ctypes
import faulthandler
import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, NoReturn, TypeVar

import msgspec
from setproctitle import setproctitle

from ..errors import StartupError
from ..messages import EncoderInfo, RunnerInfo
from .child import LENGTH_BYTES, Section, Status
from .log import setup_logging

log = logging.getLogger(__name__)

PR_SET_PDEATHSIG = 1

S = TypeVar("S", bound=Section)


class Handshake:
    """Reports a child's progress, readiness or failure to its parent. Does nothing if the parent has exited."""

    def __init__(self, status_fd: int) -> None:
        self._fd = status_fd

    def progress(self, text: str, share: float | None = None) -> None:
        """Report the current stage of loading. See ``Progress``."""
        self._write(Status("progress", text, share))

    def ready(self, runner: RunnerInfo | None = None, *, encoder: EncoderInfo | None = None) -> None:
        """Report that the child accepts messages. A process with a model passes the properties of its model."""
        self._write(Status("ready", runner=runner, encoder=encoder))

    def failed(self, sentence: str) -> None:
        """Report the reason why the child cannot start, in one sentence."""
        self._write(Status("failed", sentence))

    def _write(self, status: Status) -> None:
        line = msgspec.json.encode(status) + b"\n"
        try:
            while line:
                line = line[os.write(self._fd, line) :]
        except BrokenPipeError:
            log.debug("the status pipe has no reader: %s", json.dumps(status.text))


def run_child(section_type: type[S], title: str, main: Callable[[S, Handshake], None]) -> NoReturn:
    """Run a child process. The child's ``__main__`` only calls this function.

    ``main`` receives the section and the handshake and runs until it returns or SIGTERM arrives (exit code 0). A
    StartupError is reported to the parent, and its traceback is logged at level debug. Any other exception is logged
    with its traceback. After an exception, the exit code is 1.
    """
    _die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _leave)
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    handshake = Handshake(_take_status_fd())
    section = _read_section(section_type)
    setproctitle(f"ebbtide::{title}")
    faulthandler.enable()
    setup_logging(title, section.log.log_level, section.log.log_format)
    try:
        try:
            main(section, handshake)
        finally:
            _ignore_sigterm()
    except StartupError as error:
        log.debug("the %s cannot start", title, exc_info=True)
        handshake.failed(str(error))
        sys.exit(1)
    except Exception:
        log.exception("the %s exits because of an unexpected error", title)
        sys.exit(1)
    sys.exit(0)


def _leave(signal_number: int, frame: FrameType | None) -> NoReturn:
    _ignore_sigterm()
    raise SystemExit(0)


def _ignore_sigterm() -> None:
    """Ignore SIGTERM during the exit: an exception from the handler would abort the exit functions of libraries."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def _take_status_fd() -> int:
    fd = int(sys.argv[1])
    os.set_inheritable(fd, False)
    return fd


def _die_with_parent() -> None:
    """Ask the kernel to kill this process when the parent dies.

    If the parent has died before this call, the child exits because its stdin is at the end of file.
    """
    if sys.platform == "linux":
        libc: Any = ctypes.CDLL(None, use_errno=True)
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _read_section(section_type: type[S]) -> S:
    """Read the section from stdin. fd 0 is then replaced by /dev/null, and a thread waits for the old stdin's end."""
    size = int.from_bytes(_read_exactly(0, LENGTH_BYTES), "big")
    section = msgspec.msgpack.decode(_read_exactly(0, size), type=section_type)
    lifeline = os.dup(0)
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    threading.Thread(target=_end_with, args=(lifeline,), name="lifeline", daemon=True).start()
    return section


def _read_exactly(fd: int, size: int) -> bytes:
    received = bytearray()
    while len(received) < size:
        chunk = os.read(fd, size - len(received))
        if not chunk:
            sys.exit(0)  # the parent has exited or cancelled the start; there is nothing to clean up
        received += chunk
    return bytes(received)


def _end_with(lifeline: int) -> None:
    while os.read(lifeline, 4096):
        pass
    os._exit(0)  # no cleanup is needed without a parent
