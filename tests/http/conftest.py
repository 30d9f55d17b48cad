"""Real daemons with the simulated model, which all tests of this folder share, and functions to query them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from ..conftest import Daemon, StartDaemon
from . import random_texts
from .smollm2.smollm2 import Answer, recorded_answers

SCRIPT: dict[str, Any] = {
    "emoji": "👩‍👩‍👧 waves 🌊🌊 at größer 日本語 שלום end",
    "alphabet": "ABCDEFGHIJKLMNOPQRSTUVWXYZ",
    "near miss": "stop? STO no, STOP now",
    "broken": [0x61, 0x80, 0xE2, 0x82, 0x62, 0xF0, 0x9F, 0x8C],
    "separators": "a\u2028b\u2029c\u0085d",
    "lone bytes": [0x80] * 500,
    **random_texts.SCRIPTS,
}


class Api:
    """The HTTP interface of one daemon."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.http = httpx.Client(base_url=url, timeout=60)
        self.openai = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=60)

    def complete(self, prompt: Any, **fields: Any) -> dict[str, Any]:
        """The body of a completion that must succeed."""
        reply = self.http.post("/v1/completions", json={"prompt": prompt, **fields})
        assert reply.status_code == 200, reply.text
        body: dict[str, Any] = reply.json()
        return body

    def stream(self, prompt: Any, **fields: Any) -> list[Any]:
        """The events of a streamed completion, "[DONE]" included."""
        reply = self.http.post("/v1/completions", json={"prompt": prompt, "stream": True, **fields})
        assert reply.status_code == 200, reply.text
        lines = [line for line in reply.text.split("\n") if line.startswith("data: ")]
        return [json.loads(line[6:]) if line != "data: [DONE]" else "[DONE]" for line in lines]

    def metric(self, name: str) -> float:
        """The sum of a metric's series."""
        lines = self.http.get("/metrics").text.splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith(f"ebbtide:{name}{{"))

    def totals(self) -> Counter[str]:
        """Every series of one scrape, summed over its labels."""
        values: Counter[str] = Counter()
        for line in self.http.get("/metrics").text.splitlines():
            if line.startswith("ebbtide:"):
                series, value = line.removeprefix("ebbtide:").rsplit(" ", 1)
                values[series.split("{")[0]] += float(value)  # type: ignore[assignment]
        return values

    def load(self) -> float:
        """The number of requests that are running, queued, or open in the front process."""
        return sum(self.metric(name) for name in ("num_running_reqs", "num_queue_reqs", "open_http_requests"))

    def close(self) -> None:
        self.http.close()
        self.openai.close()


@pytest.fixture(scope="session")
def api(start_shared_daemon: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """A fast daemon with scripted answers for some prompts."""
    script: Path = tmp_path_factory.mktemp("script") / "script.json"
    script.write_text(json.dumps(SCRIPT))
    api = Api(start_shared_daemon("--sim-script", str(script), keep=True).url)
    yield api
    api.close()


@pytest.fixture(scope="session")
def slow_api(start_shared_daemon: Any) -> Iterator[Api]:
    """A daemon with slow steps, a pool of 64 pages, and a keep-alive interval that is much shorter than a prefill."""
    flags = ("--sim-step-ms", "10", "--max-total-tokens", "1024", "--retraction-risk", "0.9999999")
    api = Api(
        start_shared_daemon(
            *flags,
            *("--context-length", "4096", "--sse-keep-alive", "0.05", "--chunked-prefill-size", "16"),
            keep=True,
        ).url
    )
    yield api
    api.close()


@pytest.fixture(scope="session")
def target(start_shared_daemon: StartDaemon) -> Daemon:
    """A daemon for requests of any form; its answers are short and its log has warnings only."""
    flags = ("--context-length", "256", "--max-total-tokens", "4096", "--max-running-requests", "32")
    return start_shared_daemon(*flags, "--log-level", "warning", "--enable-streaming-session", keep=True)


@pytest.fixture(scope="session")
def smollm2_truth() -> list[Answer]:
    """The recorded answers of transformers to ``smollm2.CHATS``."""
    return recorded_answers()
