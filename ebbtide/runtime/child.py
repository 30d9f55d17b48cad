"""Starts, configures, monitors and stops the child processes of a daemon.

This module does not depend on the tasks of the children. Parent and child share two pipes. On its stdin, the child
receives its configuration section once; a later end of file means that the parent has exited. On the status pipe, the
child sends JSON lines. The child's side is in child_main.py.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Literal, Protocol

import msgspec

from ..config import LogConfig
from ..messages import EncoderInfo, RunnerInfo

log = logging.getLogger(__name__)

LENGTH_BYTES = 8
WATCHDOG_EXIT_CODE = 70  # exit code of a child that its own watchdog ended, and of a daemon whose child hung


class Section(Protocol):
    """Configuration of a child process: plain data for msgpack, including the logging configuration."""

    @property
    def log(self) -> LogConfig: ...


class Status(msgspec.Struct, frozen=True):
    """One line on the status pipe.

    Attributes:
        text: progress or failure message; "" if ``kind`` is "ready".
        share: part of the stage ``text`` that is done, 0 to 1; None if it is unknown.
        runner, encoder: properties of the process's model; set only if ``kind`` is "ready" and the process has one.
    """

    kind: Literal["progress", "ready", "failed"]
    text: str = ""
    share: float | None = None
    runner: RunnerInfo | None = None
    encoder: EncoderInfo | None = None


class Child:
    """A running child process.

    Start it from a thread that lives as long as the child: the kernel kills the child when this thread ends. The child
    runs in a new session, so that Ctrl-C in a terminal reaches only the parent.
    """

    def __init__(self, module: str, title: str) -> None:
        """Start ``module``, which must call ``run_child``. The child then waits for the section from ``send``."""
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
                stdout=2,  # stdout is reserved for the parent
                pass_fds=(write_end,),
                start_new_session=True,
                env=os.environ | {"PYTHONPATH": _python_path()},
            )
        finally:
            os.close(write_end)

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """The exit code; −n if signal n killed the child, None while it runs."""
        return self._process.poll()

    def send(self, section: Section) -> None:
        """Send the child its section. Call it once. Does nothing if the child has exited."""
        payload = msgspec.msgpack.encode(section)
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(len(payload).to_bytes(LENGTH_BYTES, "big") + payload)
            self._process.stdin.flush()
        except BrokenPipeError:
            log.debug("the %s exited before it read its configuration", self.title)

    def read_status(self) -> list[Status] | None:
        """Return the received status lines without waiting; None once the pipe is closed and all lines are read."""
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
        """Return one sentence that says how the child ended. Call it after the status pipe was closed."""
        code = self._wait(5.0)
        if self._killed_because:
            return f"The {self.title} process was killed because it {self._killed_because}."
        if code == WATCHDOG_EXIT_CODE:
            return f"The {self.title} process was ended by its watchdog; the dump in its log says what it did."
        if code is not None and code < 0:
            hint = " The system may be out of memory." if code == -signal.SIGKILL else ""
            return f"The {self.title} process was killed by signal {-code}.{hint}"
        if code == 0:
            return f"The {self.title} process ended with exit code 0, as on SIGTERM; its log does not name the sender."
        return f"The {self.title} process ended with exit code {code}; its log says why."

    @property
    def was_stuck(self) -> bool:
        """True if the child was ended because it hung or sent no heartbeats."""
        return bool(self._killed_because) or self.exit_code == WATCHDOG_EXIT_CODE

    def kill(self, because: str) -> None:
        """Kill the child and its process group. Does nothing if the child has exited.

        because: completes the sentence "The process was killed because it …".
        """
        if self.exit_code is None:
            self._killed_because = because
            os.killpg(self.pid, signal.SIGKILL)

    def request_dump(self) -> None:
        """Send SIGUSR1, on which the child dumps its stacks. Does nothing before the child's first status line.

        Until then the child may have no handler, and the signal would kill it.
        """
        if self._heard and self.exit_code is None:
            self._process.send_signal(signal.SIGUSR1)

    def terminate(self) -> None:
        """Send SIGTERM. Does nothing if the child has exited."""
        if self.exit_code is None:
            self._process.terminate()

    def wait_or_kill(self, deadline: float) -> None:
        """Wait for the child until ``deadline`` (monotonic seconds), then kill its process group. Closes the pipes."""
        if self._wait(max(0.0, deadline - time.monotonic())) is None:
            log.warning("killing the %s, which did not exit after SIGTERM", self.title)
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
            log.debug("the %s did not read all of its configuration", self.title)

    def _wait(self, timeout_s: float) -> int | None:
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None


def stop_children(children: Iterable[Child], grace_s: float) -> None:
    """Send SIGTERM to all children, then kill those that still run after ``grace_s`` seconds. Idempotent."""
    children = list(children)
    for child in children:
        child.terminate()
    deadline = time.monotonic() + grace_s
    for child in children:
        child.wait_or_kill(deadline)


def _python_path() -> str:
    """Return PYTHONPATH for a child, which must import the same ``ebbtide`` without the working directory (``-P``)."""
    here = str(Path(__file__).parents[2])
    inherited = os.environ.get("PYTHONPATH", "")
    if here.endswith(("site-packages", "dist-packages")):
        return inherited
    return os.pathsep.join(part for part in (here, inherited) if part)
