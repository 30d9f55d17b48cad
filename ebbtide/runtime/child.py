"""The child processes of a daemon: how one is started, told its section, watched and ended; and the child's own side.

Knows nothing of what the children do. The parent's end of two pipes is all they share: the child's stdin carries its
section once and then says by its end that the parent is gone; the status pipe carries JSON lines until the child ends.
"""

from __future__ import annotations

import ctypes
import faulthandler
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from types import FrameType
from typing import Any, Literal, NoReturn, Protocol, TypeVar

import msgspec
from setproctitle import setproctitle

from ..config import LogConfig
from ..errors import StartupError
from ..messages import RunnerInfo
from .log import setup_logging

log = logging.getLogger(__name__)

LENGTH_BYTES = 8
PR_SET_PDEATHSIG = 1
WATCHDOG_EXIT_CODE = 70  # of a child that its own watchdog ended, and of a daemon whose child was stuck


class Section(Protocol):
    """What a child is told: plain data that msgpack carries, with the logging that all children share."""

    @property
    def log(self) -> LogConfig: ...


S = TypeVar("S", bound=Section)


class Status(msgspec.Struct, frozen=True):
    """One line on the status pipe. text: a progress line or the failure's sentence. runner: only with "ready"."""

    kind: Literal["progress", "ready", "failed"]
    text: str = ""
    runner: RunnerInfo | None = None


# ---------------------------------------------------------------------- the parent's side


class Child:
    """A running child process. Start it from a thread that lives as long as the child may: the kernel ends a child
    together with the thread that started it.

    The child leads a session of its own, so that a terminal's Ctrl-C reaches only the parent.
    """

    def __init__(self, module: str, title: str) -> None:
        """Start ``module``, which must call ``run_child``; it waits for ``send``."""
        self.title = title
        self.status_fd, write_end = os.pipe()
        os.set_blocking(self.status_fd, False)
        self._unread = b""
        self._heard = False
        self._killed_because = ""
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", module, str(write_end)],
                stdin=subprocess.PIPE,
                stdout=2,  # stdout belongs to the parent's own words
                pass_fds=(write_end,),
                start_new_session=True,
                env=os.environ | {"PYTHONPATH": _python_path()},
            )
        finally:
            os.close(write_end)

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs; −n after signal n."""
        return self._process.poll()

    def send(self, section: Section) -> None:
        """Tell the child its section, once; waits until it has taken it. A child that is gone already is no error."""
        payload = msgspec.msgpack.encode(section)
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(len(payload).to_bytes(LENGTH_BYTES, "big") + payload)
            self._process.stdin.flush()
        except BrokenPipeError:
            log.debug("the %s ended before it was told its section", self.title)

    def read_status(self) -> list[Status] | None:
        """The status lines that are here, never waiting; None once the child has ended and all was read."""
        try:
            chunk = os.read(self.status_fd, 65536)
        except BlockingIOError:
            return []
        if not chunk:
            return None
        self._heard = True
        *lines, self._unread = (self._unread + chunk).split(b"\n")
        return [msgspec.json.decode(line, type=Status) for line in lines]

    def exit_description(self) -> str:
        """One sentence for a child whose status pipe has closed."""
        code = self._wait(5.0)
        if self._killed_because:
            return f"The {self.title} process was killed because it {self._killed_because}."
        if code == WATCHDOG_EXIT_CODE:
            return f"The {self.title} process was ended by its watchdog; the dump in its log says what it did."
        if code is not None and code < 0:
            hint = " The system may be out of memory." if code == -signal.SIGKILL else ""
            return f"The {self.title} process was killed by signal {-code}.{hint}"
        if code == 0:
            return f"The {self.title} process ended with exit code 0, as on SIGTERM; its log does not tell who sent it."
        return f"The {self.title} process ended with exit code {code}; its log says why."

    @property
    def was_stuck(self) -> bool:
        """Whether it was ended because it got nowhere or said nothing."""
        return bool(self._killed_because) or self.exit_code == WATCHDOG_EXIT_CODE

    def kill(self, because: str) -> None:
        """End it at once, with what it started; nothing to do when it has ended by itself.

        because: "has been silent", as in "it has been silent".
        """
        if self.exit_code is None:
            self._killed_because = because
            os.killpg(self.pid, signal.SIGKILL)

    def request_dump(self) -> None:
        """Let it write what it does to its log. Before it has said anything the signal would end it."""
        if self._heard and self.exit_code is None:
            self._process.send_signal(signal.SIGUSR1)

    def terminate(self) -> None:
        """Ask it to end."""
        if self.exit_code is None:
            self._process.terminate()

    def wait_or_kill(self, deadline: float) -> None:
        """Wait until ``deadline`` (monotonic seconds), then kill it and what it started; frees the pipes."""
        if self._wait(max(0.0, deadline - time.monotonic())) is None:
            log.warning("the %s did not end when asked to and is killed", self.title)
            os.killpg(self.pid, signal.SIGKILL)
            self._process.wait()
        if self._process.stdin is not None and not self._process.stdin.closed:
            self._close_stdin()
            os.close(self.status_fd)

    def _close_stdin(self) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
        except BrokenPipeError:
            log.debug("the %s never read all of its section", self.title)

    def _wait(self, timeout_s: float) -> int | None:
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None


def stop_children(children: Iterable[Child], grace_s: float) -> None:
    """End all: ask first, kill what is left after ``grace_s`` seconds. Safe to call twice and for dead children."""
    children = list(children)
    for child in children:
        child.terminate()
    deadline = time.monotonic() + grace_s
    for child in children:
        child.wait_or_kill(deadline)


def _python_path() -> str:
    """A child finds the same ``ebbtide`` as its parent, but takes no module from the working directory (``-P``)."""
    here = str(Path(__file__).parents[2])
    inherited = os.environ.get("PYTHONPATH", "")
    if here.endswith(("site-packages", "dist-packages")):
        return inherited
    return os.pathsep.join(part for part in (here, inherited) if part)


# ---------------------------------------------------------------------- the child's side


class Handshake:
    """How a child tells its parent that it loads, is ready or cannot be. Safe to use when the parent is gone."""

    def __init__(self, status_fd: int) -> None:
        self._fd = status_fd

    def progress(self, text: str) -> None:
        """One line that says what is being done now."""
        self._write(Status("progress", text))

    def ready(self, runner: RunnerInfo | None = None) -> None:
        """The child takes work from now on; the scheduler says what its runner measured."""
        self._write(Status("ready", runner=runner))

    def failed(self, sentence: str) -> None:
        """The child cannot start, and why."""
        self._write(Status("failed", sentence))

    def _write(self, status: Status) -> None:
        line = msgspec.json.encode(status) + b"\n"
        try:
            while line:
                line = line[os.write(self._fd, line) :]
        except BrokenPipeError:
            log.debug("nobody reads the status: %s", json.dumps(status.text))


def run_child(section_type: type[S], title: str, main: Callable[[S, Handshake], None]) -> NoReturn:
    """The whole life of a child process: its ``__main__`` calls this and nothing else.

    ``main`` gets the section and the handshake and runs until it is done or SIGTERM ends it (exit code 0). A
    StartupError goes to the parent as one sentence; any other exception goes to the log with its traceback (both 1).
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
        main(section, handshake)
    except StartupError as error:
        handshake.failed(str(error))
        sys.exit(1)
    except Exception:
        log.exception("the %s ends because of an error that it does not know", title)
        sys.exit(1)
    sys.exit(0)


def _leave(signal_number: int, frame: FrameType | None) -> NoReturn:
    raise SystemExit(0)


def _take_status_fd() -> int:
    fd = int(sys.argv[1])
    os.set_inheritable(fd, False)
    return fd


def _die_with_parent() -> None:
    """Ask the kernel for SIGKILL when the parent dies.

    A parent that died before this line is noticed all the same: stdin is at its end.
    """
    if sys.platform == "linux":
        libc: Any = ctypes.CDLL(None, use_errno=True)
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _read_section(section_type: type[S]) -> S:
    """The section from stdin. Afterwards a thread waits for stdin's end and fd 0 itself reads nothing."""
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
            sys.exit(0)  # the parent is gone or changed its mind: nothing was started yet
        received += chunk
    return bytes(received)


def _end_with(lifeline: int) -> None:
    while os.read(lifeline, 4096):
        pass
    os._exit(0)  # no clean-up: the parent that would want it is gone
