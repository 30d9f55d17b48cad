"""A long random mix of client behavior: correct answers, constant memory, and no open request at the end."""

from __future__ import annotations

import contextlib
import random
import re
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psutil
import pytest

from .audit import check_idle, check_scrape, send, within
from .conftest import Api

FLAGS = ("--max-total-tokens", "1536", "--context-length", "8192", "--schedule-conservativeness", "0.1")
PACE = ("--sim-step-ms", "2", "--test-retract-interval", "200", "--chunked-prefill-size", "64")
LIMITS = ("--slow-reader-timeout", "2", "--kv-offload-gb", "0.001", "--memory-check", "quarantine")
NUM_CLIENTS = 10
PAUSE_S = 0.1  # of a client between two requests, on average
SAMPLE_S = 1.0
SLACK_BYTES = 6 << 20  # tolerance between the heap sizes after different numbers of requests
GREEDY = {"temperature": 0, "ignore_eos": True}


class Crowd:
    """Clients that behave well or badly, or disconnect. counts: how often each action was done."""

    def __init__(self, api: Api) -> None:
        self.api = api
        self.counts: Counter[str] = Counter()
        self._known: dict[tuple[str, int], str] = {}
        self._lock = threading.Lock()

    def act(self, rng: random.Random) -> None:
        """Do one random action of a client."""
        does = rng.choice(
            [self._whole] * 8
            + [self._stream] * 8
            + [self._two_choices, self._stop_string, self._batch, self._chat, self._oversize, self._bad_request]
            + [
                self._outgrow,
                self._leave_before,
                self._leave_within,
                self._read_slowly,
                self._read_nothing,
                self._scrape,
            ]
        )
        does(rng)
        with self._lock:
            self.counts[does.__name__.strip("_")] += 1

    def _ask(self, rng: random.Random) -> tuple[str, int]:
        """One of some thousand prompts, many with a beginning in common, and a length."""
        return "shared words " * rng.randrange(12) + str(rng.randrange(60)), rng.choice((1, 5, 20, 80, 200))

    def _same(self, prompt: str, count: int, text: str) -> None:
        """Greedy answers to one prompt are always the same, also after retractions."""
        with self._lock:
            assert self._known.setdefault((prompt, count), text) == text, prompt

    def _whole(self, rng: random.Random) -> None:
        prompt, count = self._ask(rng)
        body = self.api.complete(prompt, max_tokens=count, **GREEDY)
        assert body["usage"]["completion_tokens"] == count
        self._same(prompt, count, body["choices"][0]["text"])

    def _stream(self, rng: random.Random) -> None:
        prompt, count = self._ask(rng)
        *events, end = self.api.stream(prompt, max_tokens=count, **GREEDY)
        assert end == "[DONE]"
        self._same(prompt, count, "".join(event["choices"][0]["text"] for event in events))

    def _two_choices(self, rng: random.Random) -> None:
        prompt, count = self._ask(rng)
        body = self.api.complete(prompt, max_tokens=count, n=2, **GREEDY)
        for choice in body["choices"]:
            self._same(prompt, count, choice["text"])

    def _stop_string(self, rng: random.Random) -> None:
        prompt, _ = self._ask(rng)
        body = self.api.complete(prompt, max_tokens=300, stop=["a", "e", "Q"], **GREEDY)
        assert not set("aeQ") & set(body["choices"][0]["text"])

    def _batch(self, rng: random.Random) -> None:
        asked = [self._ask(rng)[0] for _ in range(3)]
        body = self.api.complete(asked, max_tokens=20, **GREEDY)
        for prompt, choice in zip(asked, body["choices"], strict=True):
            self._same(prompt, 20, choice["text"])

    def _chat(self, rng: random.Random) -> None:
        """A conversation that is sent again with one more turn each time."""
        messages = [{"role": "user", "content": self._ask(rng)[0]}]
        for _ in range(3):
            reply = self.api.http.post("/v1/chat/completions", json={"messages": messages, "max_tokens": 16, **GREEDY})
            assert reply.status_code == 200, reply.text
            messages += [reply.json()["choices"][0]["message"], {"role": "user", "content": "and then?"}]

    def _oversize(self, rng: random.Random) -> None:
        reply = self.api.http.post(
            "/v1/completions", json={"prompt": "x" * rng.choice((9000, 200_000)), "max_tokens": 4}
        )
        assert (reply.status_code, reply.json()["error"]["code"]) == (400, "context_length_exceeded")

    def _bad_request(self, rng: random.Random) -> None:
        body = rng.choice(({"prompt": "a", "n": 0}, {"prompt": 3}, {"max_tokens": -2, "prompt": "a"}, {"model": "no"}))
        assert 400 <= self.api.http.post("/v1/completions", json=body).status_code < 500

    def _outgrow(self, rng: random.Random) -> None:
        """A request that does not fit into the pool even alone; it may be stopped earlier."""
        body = {"prompt": self._ask(rng)[0], "max_tokens": 4000, "stream": True, **GREEDY}
        with contextlib.closing(send(self.api.url, body)) as connection:
            received = b""
            while chunk := connection.recv(1 << 16):
                received += chunk
                if b"kv_cache_exhausted" in received:
                    break
            assert b"kv_cache_exhausted" in received, received[-500:]

    def _leave_before(self, rng: random.Random) -> None:
        send(self.api.url, {"prompt": self._ask(rng)[0], "max_tokens": 400, "stream": rng.random() < 0.5}).close()

    def _leave_within(self, rng: random.Random) -> None:
        body = {"prompt": self._ask(rng)[0], "max_tokens": 1000, "stream": True, **GREEDY}
        with contextlib.closing(send(self.api.url, body)) as connection:
            connection.recv(rng.randrange(1, 8192))

    def _read_slowly(self, rng: random.Random) -> None:
        """Read an answer that is larger than the buffers more slowly than it is sent; all of it must arrive."""
        body = {"prompt": self._ask(rng)[0], "max_tokens": 200, "logprobs": 5, "stream": True, **GREEDY}
        with contextlib.closing(send(self.api.url, body)) as connection:
            received = b""
            while b"[DONE]" not in received[-200:]:
                chunk = connection.recv(2048)
                assert chunk, received[-500:]
                received += chunk
                time.sleep(0.01)

    def _read_nothing(self, rng: random.Random) -> None:
        """Request more than the buffers hold and do not read: the server must disconnect, unless memory was short."""
        body = {"prompt": self._ask(rng)[0], "max_tokens": 400, "logprobs": 5, "n": 2, "stream": True, **GREEDY}
        with contextlib.closing(send(self.api.url, body)) as connection:
            time.sleep(6.0)
            received = b""
            with contextlib.suppress(ConnectionResetError):
                while b"[DONE]" not in received[-200:] and (chunk := connection.recv(1 << 16)):
                    received += chunk
        with self._lock:
            self.counts["cut" if b"[DONE]" not in received[-200:] else "read_late"] += 1

    def _scrape(self, rng: random.Random) -> None:
        check_scrape(self.api.totals())
        assert self.api.http.get("/pressure").status_code == 200
        assert self.api.http.get("/ready").status_code == 200


def loop(crowd: Crowd, seed: int, deadline: float) -> None:
    """Run one client until the time is over."""
    rng = random.Random(seed)
    while time.monotonic() < deadline:
        crowd.act(rng)
        time.sleep(rng.random() * 2 * PAUSE_S)


def watch(pids: dict[str, int], deadline: float) -> dict[str, list[int]]:
    """Record the resident bytes of each process every second."""
    processes = {name: psutil.Process(pid) for name, pid in pids.items()}
    sizes: dict[str, list[int]] = {name: [] for name in pids}
    while time.monotonic() < deadline:
        for name, process in processes.items():
            sizes[name].append(process.memory_info().rss)
        time.sleep(SAMPLE_S)
    return sizes


def third(samples: list[int], number: int) -> float:
    """The mean of one third of the values."""
    size = max(len(samples) // 3, 1)
    part = samples[number * size : (number + 1) * size]
    return sum(part) / len(part)


def dump_of(daemon: Any) -> str:
    command = [sys.executable, "-m", "ebbtide.server.cli", "dump", "--pid", str(daemon.process.pid)]
    env = {**psutil.Process(daemon.process.pid).environ()}
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=True).stdout


def tables_are_empty(text: str) -> bool:
    """True if a dump shows no state of any request in any process."""
    lines = ("0 open requests", "open HTTP requests: 0, with 0 choices", "open control calls: 0")
    kept = re.findall(r"(\w+) reported: \w+, \d+ messages handled, (\d+) requests held", text)
    return all(line in text for line in lines) and sorted(kept) == [("detokenizer", "0"), ("scheduler", "0")]


@pytest.mark.parametrize("seconds", [5, pytest.param(1200, marks=pytest.mark.soak)])
def test_a_mixed_load_leaves_nothing_behind(seconds: int, start_daemon: Any) -> None:
    daemon = start_daemon(*FLAGS, *PACE, *LIMITS)
    with contextlib.closing(Api(daemon.url)) as api, ThreadPoolExecutor(NUM_CLIENTS + 1) as pool:
        crowd, deadline = Crowd(api), time.monotonic() + seconds
        watcher = pool.submit(watch, daemon.pids, deadline)
        clients = [pool.submit(loop, crowd, seed, deadline) for seed in range(NUM_CLIENTS)]
        for client in clients:
            client.result()
        sizes = watcher.result()
        check_idle(api)
        totals = api.totals()
        within(5.0, lambda: tables_are_empty(dump_of(daemon)))  # heartbeats come twice a second
        print(dict(crowd.counts))
        print({name: totals[name] for name in sorted(totals) if name.startswith("num_") and "_total" in name})
        print({name: [round(third(samples, n) / 2**20, 2) for n in range(3)] for name, samples in sizes.items()})
        assert totals["num_retracted_requests_total"] > 0
        for name, samples in sizes.items():
            assert third(samples, 2) - third(samples, 1) < SLACK_BYTES, (name, samples)
    assert "Traceback" not in daemon.log, daemon.log
    assert "does not balance" not in daemon.log
