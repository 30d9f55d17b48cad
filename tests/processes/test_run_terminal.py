"""``ebbtide run`` on a terminal and with piped input: it starts a daemon, answers, and leaves nothing behind."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil
import pytest

ROOT = Path(__file__).parent.parent.parent
COMMAND = [sys.executable, "-m", "ebbtide.server.cli", "run", "sim"]
WAIT_S = 60.0


class Terminal:
    """The command on a terminal of its own."""

    def __init__(self, environment: dict[str, str]) -> None:
        self._master, end = pty.openpty()

        def take_terminal() -> None:
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)

        self.process = subprocess.Popen(
            COMMAND,
            cwd=ROOT,
            env=environment,
            stdin=end,
            stdout=end,
            stderr=end,
            start_new_session=True,
            preexec_fn=take_terminal,
        )
        os.close(end)

    def type(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def read_until(self, pattern: str) -> str:
        """Everything that the command writes, up to the pattern."""
        shown = ""
        while not re.search(pattern, shown):
            assert select.select([self._master], [], [], WAIT_S)[0], f"nothing follows {shown!r}"
            shown += os.read(self._master, 4096).decode(errors="replace")
        return shown

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._master)


@pytest.fixture
def environment() -> Iterator[dict[str, str]]:
    """Servers are registered in the temporary folder, so that only a server of this test is found.

    The folder's path is short, because the paths of sockets in it are limited.
    """
    with TemporaryDirectory(prefix="ebb-") as folder:
        yield os.environ | {"TMPDIR": folder, "TERM": "xterm"}


@pytest.fixture
def terminal(environment: dict[str, str]) -> Iterator[Terminal]:
    opened = Terminal(environment)
    yield opened
    opened.close()


def servers(parent: subprocess.Popen[bytes]) -> list[psutil.Process]:
    return list(psutil.Process(parent.pid).children(recursive=True))


@pytest.mark.parametrize("keys", ["\x04", "/quit\n"], ids=["ctrl-d", "quit"])
def test_a_chat_answers_and_ends_with_its_server(keys: str, terminal: Terminal) -> None:
    terminal.read_until(r"Enter /help for a list of commands\.\s+> $")
    terminal.type("hello there\n")
    first = terminal.read_until(r"tokens in [\d.]+ s\]\s+> $")
    assert "[0 tokens reused + 14 new" in first
    terminal.type("more\n")
    assert re.search(r"\[\d\d+ tokens reused \+ \d+ new", terminal.read_until(r"tokens in [\d.]+ s\]\s+> $"))
    own = servers(terminal.process)
    assert own
    terminal.type(keys)
    assert terminal.process.wait(60) == 0
    assert not [process for process in own if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]


def test_piped_input_is_added_to_the_prompt_and_only_the_answer_is_on_stdout(environment: dict[str, str]) -> None:
    command = [*COMMAND, "Summarize this text:"]
    run = subprocess.run(
        command, cwd=ROOT, env=environment, input=b"a text", capture_output=True, timeout=120, check=True
    )
    again = subprocess.run(
        command, cwd=ROOT, env=environment, input=b"another", capture_output=True, timeout=120, check=True
    )
    assert run.stdout.strip()
    assert run.stdout != again.stdout
    assert b"Loading" not in run.stdout
