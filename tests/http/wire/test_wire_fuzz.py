"""Despite random bytes on connections, valid requests are answered in order, and the front process leaks no memory."""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from collections import Counter
from collections.abc import Iterator

import httpx
import psutil
import pytest

from ...conftest import Daemon, StartDaemon
from .dialogues import play
from .fuzzed_connections import PROMPT

FLAGS = ("--receive-timeout", "20", "--log-level", "warning", "--max-total-tokens", "16384")
QUICK_S = 3.0
SOAK_S = float(os.environ.get("WIRE_FUZZ_SECONDS", "7200"))
SAMPLE_S = 5.0
MIB = 1 << 20


@pytest.fixture(scope="module")
def target(start_shared_daemon: StartDaemon) -> Daemon:
    return start_shared_daemon(*FLAGS)


def seeds_until(deadline: float, numbers: Iterator[int]) -> Iterator[int]:
    return itertools.takewhile(lambda _: time.monotonic() < deadline, numbers)


def answer_of(daemon: Daemon) -> str:
    """The text of the answer to a plain request on a new connection."""
    reply = httpx.post(f"{daemon.url}/v1/completions", json=PROMPT, timeout=60)
    assert reply.status_code == 200, reply.text
    text: str = reply.json()["choices"][0]["text"]
    return text


def is_idle(daemon: Daemon, files: int) -> bool:
    """True if no request is open and no connection is left."""
    open_requests = [
        line for line in httpx.get(f"{daemon.url}/metrics").text.splitlines() if ":open_http_requests{" in line
    ]
    return float(open_requests[0].split()[-1]) == 0 and psutil.Process(daemon.pids["front"]).num_fds() <= files


def fuzz(daemon: Daemon, seconds: float, numbers: Iterator[int]) -> tuple[Counter[str], list[int]]:
    """Play dialogues for ``seconds``. Returns counts, and the resident bytes of the front after each round."""
    front = psutil.Process(daemon.pids["front"])
    right, files, sizes = answer_of(daemon), front.num_fds() + 1, []
    counts: Counter[str] = Counter()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        round_end = min(end, time.monotonic() + SAMPLE_S)
        played, faults = asyncio.run(play(daemon.url, seeds_until(round_end, numbers), 8))
        counts += played
        assert not faults, "\n".join(faults[:10]) + f"\n({len(faults)} in all)"
        assert answer_of(daemon) == right
        sizes.append(front.memory_info().rss)
    deadline = time.monotonic() + 30
    while not is_idle(daemon, files):
        assert time.monotonic() < deadline, "requests or connections are left"
    assert "Traceback" not in daemon.log
    assert "ERROR" not in daemon.log
    return counts, sizes


def test_random_bytes_do_not_affect_requests(target: Daemon) -> None:
    counts, _ = fuzz(target, QUICK_S, itertools.count())
    assert counts["200"] > 20
    assert sum(count for name, count in counts.items() if name.startswith("after garbage")) > 10


@pytest.mark.soak
def test_random_bytes_for_two_hours_cost_no_memory(target: Daemon) -> None:
    """The variable WIRE_FUZZ_SECONDS changes the duration."""
    counts, sizes = fuzz(target, SOAK_S, itertools.count(1_000_000))
    third = len(sizes) // 3
    means = [sum(part) / len(part) / MIB for part in (sizes[:third], sizes[third : 2 * third], sizes[2 * third :])]
    print(dict(counts), "resident MiB, mean of each third:", [round(mean, 1) for mean in means])
    assert means[2] < means[1] + 2, means
