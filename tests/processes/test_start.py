"""The start of a daemon: from the command line to the first response, or to a one-sentence error."""

from __future__ import annotations

import json
import re
import socket
import stat
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest


def ask(url: str, **body: Any) -> httpx.Response:
    body = {"model": "sim", "prompt": "tide", "max_tokens": 8} | body
    return httpx.post(f"{url}/v1/completions", json=body, timeout=60)


def test_a_daemon_is_three_named_processes_that_answer(shared_daemon: Any) -> None:
    assert sorted(shared_daemon.pids) == ["detokenizer", "front", "scheduler"]
    assert httpx.get(f"{shared_daemon.url}/ready", timeout=60).status_code == 200
    assert ask(shared_daemon.url).json()["usage"]["completion_tokens"] == 8


def test_the_processes_meet_in_a_private_directory_and_only_the_front_listens(shared_daemon: Any) -> None:
    (directory,) = shared_daemon.tmp.iterdir()
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    names = sorted(path.name for path in directory.iterdir())
    assert names == ["daemon.json", "detokenizer", "front", "lock", "scheduler"]
    port = httpx.URL(shared_daemon.url).port
    listening = [
        (name, connection.laddr.port)
        for name, pid in shared_daemon.pids.items()
        for connection in psutil.Process(pid).net_connections()
        if connection.status == psutil.CONN_LISTEN
    ]
    assert listening == [("front", port)]


def test_invalid_messages_are_harmless(shared_daemon: Any) -> None:
    (directory,) = shared_daemon.tmp.iterdir()
    for name in ("front", "scheduler", "detokenizer"):
        with socket.socket(socket.AF_UNIX) as stranger:
            stranger.connect(str(directory / name))
            stranger.sendall(b"\x80\x04cos\nsystem\n(S'touch marker'\ntR." * 100)
    assert ask(shared_daemon.url).status_code == 200


def test_two_daemons_work_side_by_side(start_daemon: Any) -> None:
    first, second = start_daemon(ready=False), start_daemon(ready=False)
    for daemon in (first, second):
        daemon.wait_until_ready()
    one, other = (ask(daemon.url, temperature=0).json()["choices"][0]["text"] for daemon in (first, second))
    assert one == other


def fails_to_start(daemon: Any, sentence: str) -> None:
    assert daemon.wait() == 1
    assert re.search(f"^ebbtide: {sentence}", daemon.log, re.MULTILINE), daemon.log
    assert "Traceback" not in daemon.log
    assert daemon.leftovers() == []


def test_a_port_in_use_is_refused_in_one_sentence(start_daemon: Any, shared_daemon: Any) -> None:
    port = str(httpx.URL(shared_daemon.url).port)
    fails_to_start(start_daemon("--port", port, ready=False), f"Cannot listen on 127.0.0.1 port {port}: .* in use")


def test_a_missing_model_is_refused_in_one_sentence(start_daemon: Any) -> None:
    fails_to_start(start_daemon(model="/no/such/model", ready=False), "MODEL '/no/such/model' is neither a folder")


def test_a_tokenizer_that_cannot_be_loaded_ends_the_children_too(start_daemon: Any, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["NoSuchModel"], "model_type": "no_such"}))
    fails_to_start(start_daemon(model=str(tmp_path), ready=False), "[^\n]*no_such|[^\n]*NoSuchModel|The tokenizer in")


def test_a_child_that_cannot_start_states_the_reason(start_daemon: Any) -> None:
    fails_to_start(start_daemon("--sim-script", "/no/such/script.json", ready=False), "[^\n]*/no/such/script.json")


def test_an_unknown_parser_is_refused_before_anything_is_loaded(start_daemon: Any) -> None:
    daemon = start_daemon("--tool-call-parser", "nothing", model="/no/such/model", ready=False)
    fails_to_start(daemon, "--tool-call-parser nothing is unknown; it must be one of auto, ")


@pytest.mark.parametrize("daemon", [("--log-level", "debug")], indirect=True)
def test_neither_prompts_nor_answers_are_logged(daemon: Any) -> None:
    answer = ask(daemon.url, prompt="marker-7f3a\nERROR forged", max_tokens=64, ignore_eos=True)
    assert "marker-7f3a" not in daemon.log
    assert answer.json()["choices"][0]["text"][:20] not in daemon.log
    titles = [word for pid in daemon.pids.values() for word in psutil.Process(pid).cmdline()]
    assert not any("marker-7f3a" in title for title in titles)
