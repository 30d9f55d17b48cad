"""Bodies of every shape close to the limits, sent to a daemon that must answer probes meanwhile."""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor

import httpx
import pytest

from ...conftest import StartDaemon
from .big_bodies import shapes

PROBE_S = 0.5
JSON = {"content-type": "application/json"}


def longest_probe(client: httpx.Client, answer: Future[httpx.Response]) -> float:
    """Return the longest time of a /health request during ``answer``."""
    longest = 0.0
    while not answer.done():
        started = time.monotonic()
        assert client.get("/health").status_code == 200
        longest = max(longest, time.monotonic() - started)
    return longest


@pytest.mark.soak
def test_probes_are_answered_while_bodies_of_every_shape_are_read(start_daemon: StartDaemon) -> None:
    daemon = start_daemon("--log-level", "warning")
    probes: dict[str, float] = {}
    with httpx.Client(base_url=daemon.url, timeout=600) as client, ThreadPoolExecutor(1) as pool:
        for name, path, body in shapes():
            sent = pool.submit(httpx.post, daemon.url + path, content=body, headers=JSON, timeout=600)
            probes[name] = longest_probe(client, sent)
            assert sent.result().status_code in (200, 400, 413), (name, sent.result().text[:500])
            print(f"{name}: {probes[name] * 1000:.0f} ms")
    assert {name: seconds for name, seconds in probes.items() if seconds > PROBE_S} == {}
