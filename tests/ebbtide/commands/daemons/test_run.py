"""``ebbtide run`` and ``ebbtide ps``, with a running daemon and with a daemon that ``run`` starts."""

from __future__ import annotations

import io
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import httpx
import pytest

from ebbtide.runtime.daemon_record import living_records
from ebbtide.server import cli


@pytest.fixture
def served(shared_daemon: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(tempfile, "tempdir", str(shared_daemon.tmp))
    return shared_daemon


def test_one_prompt_is_answered_by_the_running_server(
    served: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("a text\n"))
    assert cli.main(["run", "sim", "Summarize:", "--max-tokens", "9", "--temperature", "0"]) == 0
    body = {
        "model": "sim",
        "messages": [{"role": "user", "content": "Summarize:\n\na text"}],
        "max_tokens": 9,
        "temperature": 0,
    }
    answer = httpx.post(f"{served.url}/v1/chat/completions", json=body, timeout=60).json()
    assert capsys.readouterr().out == answer["choices"][0]["message"]["content"] + "\n"


def test_ps_shows_the_running_server_and_its_load(served: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["ps"]) == 0
    head, line = capsys.readouterr().out.splitlines()
    assert head.split() == ["PID", "MODEL", "ADDRESS", "UP", "RUNNING", "WAITING", "POOL"]
    cells = line.split()
    assert cells[:3] == [str(served.process.pid), "sim", served.url]
    assert cells[-3:-1] == ["0", "0"]
    assert cells[-1].endswith("%")


def test_without_a_server_ps_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert cli.main(["ps"]) == 0
    assert capsys.readouterr().out.startswith("No server is running")


def test_no_prompt_and_no_terminal_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(" "))
    assert cli.main(["run", "sim"]) == 1
    assert capsys.readouterr().err == "ebbtide: There is no prompt: give one as an argument or as input.\n"


@pytest.mark.slow
def test_without_a_server_one_is_started_and_stopped(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with tempfile.TemporaryDirectory(prefix="ebb-test-") as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        monkeypatch.setenv("TMPDIR", folder)
        monkeypatch.setattr(sys, "stdin", io.StringIO("hello"))
        assert cli.main(["run", "sim", "--max-tokens", "5", "--context-length", "64"]) == 0
        assert len(capsys.readouterr().out) > 1
        assert living_records() == []
        assert list(Path(folder).iterdir()) == []


@pytest.mark.slow
def test_a_server_that_cannot_start_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "ebbtide.server.cli", "run", str(tmp_path / "none.gguf"), "hello"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "There is no model file" in done.stderr
    assert "did not start (exit code 1)." in done.stderr
