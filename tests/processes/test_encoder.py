"""The encoder process of a real daemon, with and without a chat model: it is supervised like the other processes."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from ..conftest import Daemon, StartDaemon

FAKE = Path(__file__).parent / "fake_encoder"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An embedding model for the stand-in of sentence-transformers."""
    monkeypatch.setenv("PYTHONPATH", str(FAKE))
    folder = tmp_path / "mini"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"architectures": ["BertModel"]}))
    return folder


def embed(daemon: Daemon, text: str = "tide", **fields: Any) -> httpx.Response:
    body = {"input": text, "model": "mini", **fields}
    return httpx.post(f"{daemon.url}/v1/embeddings", json=body, timeout=60)


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def ready(daemon: Daemon) -> bool:
    return httpx.get(f"{daemon.url}/ready", timeout=60).status_code == 200


def stalled(daemon: Daemon) -> tuple[threading.Thread, list[httpx.Response]]:
    """Send a request that the encoder never ends, and wait until it is open."""
    replies: list[httpx.Response] = []
    thread = threading.Thread(target=lambda: replies.append(embed(daemon, "stall")))
    thread.start()
    until(lambda: 'ebbtide:open_http_requests{model_name="mini"} 1.0' in metrics(daemon))
    return thread, replies


def metrics(daemon: Daemon) -> str:
    return httpx.get(f"{daemon.url}/metrics", timeout=60).text.replace('model_name="sim"', 'model_name="mini"')


def test_the_encoder_beside_a_chat_model_is_watched_and_restarted(start_daemon: StartDaemon, folder: Path) -> None:
    flags = ("--embedding-model", str(folder), "--heartbeat-timeout", "1.2", "--restart-on-failure", "1")
    daemon = start_daemon(*flags)
    assert set(daemon.pids) == {"front", "scheduler", "detokenizer", "encoder"}
    assert embed(daemon).json()["data"][0]["embedding"] == [4, 1]
    assert len(embed(daemon, model="sim").json()["data"][0]["embedding"]) == 64
    assert embed(daemon, "x" * 17).json()["error"]["code"] == "context_length_exceeded"
    encoder = psutil.Process(daemon.pids["encoder"])
    encoder.suspend()
    until(lambda: not ready(daemon))
    encoder.resume()
    until(lambda: ready(daemon))
    thread, replies = stalled(daemon)
    encoder.kill()
    thread.join(60)
    assert (replies[0].status_code, replies[0].json()["error"]["code"]) == (500, "engine_dead")
    until(lambda: ready(daemon))
    assert embed(daemon, "again").json()["data"][0]["embedding"] == [5, 1]
    daemon.signal(signal.SIGTERM)
    assert daemon.wait() == 0
    assert daemon.leftovers() == []


def test_the_encoder_alone_serves_drains_and_ends_the_daemon_when_it_dies(
    start_daemon: StartDaemon, folder: Path
) -> None:
    daemon = start_daemon("--embedding-model", str(folder), model="")
    assert set(daemon.pids) == {"front", "encoder"}
    assert embed(daemon).json()["usage"]["prompt_tokens"] == 4
    chat = httpx.post(f"{daemon.url}/v1/completions", json={"prompt": "x"}, timeout=60)
    assert chat.status_code == 404
    thread, replies = stalled(daemon)
    psutil.Process(daemon.pids["encoder"]).kill()
    thread.join(60)
    assert replies[0].status_code == 500
    assert daemon.wait() == 1
    assert daemon.leftovers() == []
