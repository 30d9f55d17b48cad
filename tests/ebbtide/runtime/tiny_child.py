"""A child process for the tests of ebbtide.runtime.child; its section selects its behavior."""

from __future__ import annotations

import atexit
import os
import signal
import threading
from dataclasses import dataclass

from setproctitle import getproctitle

from ebbtide.config import LogConfig
from ebbtide.errors import StartupError
from ebbtide.messages import PoolInfo, RunnerInfo
from ebbtide.runtime.child import WATCHDOG_EXIT_CODE
from ebbtide.runtime.child_main import Handshake, run_child


@dataclass(frozen=True, slots=True)
class TinySection:
    """What to do: load and stay, fail, break, ignore SIGTERM, or start a process of one's own and stay.

    ends_twice: send SIGTERM to itself while the interpreter exits.
    """

    behaviour: str
    log: LogConfig
    ballast: str = ""
    ends_twice: bool = False


def _maybe_end(behaviour: str) -> None:
    if behaviour == "fail":
        raise StartupError("There is no moon tonight.")
    if behaviour == "break":
        raise ZeroDivisionError("a bug")
    if behaviour == "stuck":
        os._exit(WATCHDOG_EXIT_CODE)


def _main(section: TinySection, handshake: Handshake) -> None:
    handshake.progress("loading")
    if section.ends_twice:
        atexit.register(os.kill, os.getpid(), signal.SIGTERM)
    _maybe_end(section.behaviour)
    if section.behaviour == "return":
        return
    if section.behaviour == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if section.behaviour == "title":
        handshake.progress(getproctitle())
    if section.behaviour == "stdin":
        handshake.progress(repr(os.read(0, 10)))
    if section.behaviour == "length":
        handshake.progress(str(len(section.ballast)))
    handshake.ready(RunnerInfo(100, 260, (PoolInfo(10, 16),), 4, (256,)))
    threading.Event().wait()


if __name__ == "__main__":
    run_child(TinySection, "tiny", _main)
