"""Any request: no 5xx, every refusal is an error object, no traceback, and the next request is answered correctly."""

from __future__ import annotations

import asyncio
import json
from collections import Counter

import aiohttp
import psutil
import pytest
from yarl import URL

from ..conftest import Daemon
from .fuzzing import Shot, shot

PROBE = {"prompt": "an honest question", "max_tokens": 8, "temperature": 0}
WORKERS = 8
PATIENCE_S = 60.0


async def fire(session: aiohttp.ClientSession, url: str, made: Shot) -> tuple[int, bytes, str]:
    """Status, whole body and content type."""
    target = URL(url + made.path, encoded=True)
    timeout = aiohttp.ClientTimeout(total=PATIENCE_S)
    async with session.request(made.method, target, data=made.body, headers=made.headers, timeout=timeout) as response:
        return response.status, await response.read(), response.headers.get("content-type", "")


def fault(made: Shot, status: int, body: bytes, kind: str) -> str:
    """A description of the error in an answer; "" if there is none."""
    if status >= 500:
        return f"{status}"
    if status < 400 or made.method == "HEAD":
        return ""
    try:
        error = json.loads(body)["error"]
    except (ValueError, KeyError, TypeError):
        return f"{status} without the envelope ({kind})"
    good = isinstance(error.get("message"), str) and error["message"] and isinstance(error.get("type"), str)
    return "" if good and len(body) < 8192 else f"{status} with a bad envelope of {len(body)} bytes"


async def barrage(url: str, seeds: range) -> tuple[Counter[int], list[str]]:
    """Send the requests of ``seeds``, and a probe after every 50th. Returns statuses, and errors with their seeds."""
    waiting = iter(seeds)
    statuses: Counter[int] = Counter()
    faults: list[str] = []
    async with aiohttp.ClientSession() as session:
        right = await ask_probe(session, url)

        async def work() -> None:
            for seed in waiting:
                made = shot(seed)
                try:
                    status, body, kind = await fire(session, url, made)
                except (ValueError, aiohttp.http_exceptions.LineTooLong):
                    continue  # the client itself does not send such a header
                statuses[status] += 1
                wrong = fault(made, status, body, kind)
                if wrong:
                    faults.append(
                        f"seed {seed}: {made.method} {made.path[:80]} {made.body[:300]!r}: {wrong} {body[:300]!r}"
                    )
                if seed % 50 == 0 and await ask_probe(session, url) != right:
                    faults.append(f"seed {seed}: the probe is answered differently")

        await asyncio.gather(*(work() for _ in range(WORKERS)))
    return statuses, faults


async def ask_probe(session: aiohttp.ClientSession, url: str) -> str:
    """The text of the answer to a plain request."""
    async with session.post(url + "/v1/completions", json=PROBE) as response:
        assert response.status == 200
        text: str = (await response.json())["choices"][0]["text"]
        return text


def bombard(daemon: Daemon, seeds: range) -> Counter[int]:
    """Send the requests and check the answers."""
    before = {name: psutil.Process(pid).create_time() for name, pid in daemon.pids.items()}
    statuses, faults = asyncio.run(barrage(daemon.url, seeds))
    assert not faults, "\n".join(faults[:10]) + f"\n({len(faults)} in all)"
    assert {name: psutil.Process(pid).create_time() for name, pid in daemon.pids.items()} == before
    assert "Traceback" not in daemon.log
    return statuses


def test_a_thousand_malformed_requests_do_not_affect_other_requests(target: Daemon) -> None:
    statuses = bombard(target, range(1000))
    assert statuses[200] > 100  # not everything is refused for the same reason
    assert statuses[400] > 300


@pytest.mark.soak
def test_twenty_thousand_malformed_requests_do_not_affect_other_requests(target: Daemon) -> None:
    statuses = bombard(target, range(1000, 21_000))
    print(dict(statuses))
