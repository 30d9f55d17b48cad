"""Everything is released after mixed loads, after disconnects, and after disconnects of retracted requests."""

from __future__ import annotations

import contextlib
import random
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psutil
import pytest

from .audit import check_idle, check_scrape, send, unchanged, within
from .conftest import Api

SMALL = ("--max-total-tokens", "1024", "--context-length", "4096", "--retraction-risk", "0.9999999")
GREEDY = {"temperature": 0, "ignore_eos": True}


@pytest.mark.parametrize(
    ("page_size", "pools", "rounds", "num_requests"),
    [
        (1, "full", 1, 64),
        (16, "full,swa:64,mamba:24", 1, 64),
        pytest.param(1, "full,mamba:40", 20, 256, marks=pytest.mark.soak),
        pytest.param(16, "full", 20, 256, marks=pytest.mark.soak),
    ],
)
def test_every_page_is_returned_after_a_mixed_load(
    page_size: int, pools: str, rounds: int, num_requests: int, start_daemon: Any
) -> None:
    flags = ("--page-size", str(page_size), "--chunked-prefill-size", "37", "--test-retract-interval", "11")
    with contextlib.closing(Api(start_daemon(*SMALL, *flags, "--sim-pools", pools).url)) as api:
        generator = random.Random(page_size)

        def ask(number: int) -> None:
            body = {"prompt": "shared " * (number % 9) + str(number), "max_tokens": 1 + number % 80, **GREEDY}
            body |= {"n": 2 if number % 10 == 3 else 1, "stream": number % 3 == 0}
            if number % 10 == 7:
                with send(api.url, {**body, "max_tokens": 400, "stream": True}) as connection:
                    connection.recv(generator.randrange(1, 4096))
                return
            assert api.http.post("/v1/completions", json=body).status_code == 200

        for _ in range(rounds):
            with ThreadPoolExecutor(min(num_requests, 100)) as pool:
                list(pool.map(ask, range(num_requests)))
            check_idle(api)
            assert api.metric("num_retracted_requests_total") > 0


def test_a_hundred_disconnects_stop_their_work(start_daemon: Any) -> None:
    with contextlib.closing(Api(start_daemon(*SMALL, "--sim-step-ms", "2").url)) as api:

        def leave(number: int) -> None:
            body = {"prompt": f"{number} " * 60, "max_tokens": 2000, **GREEDY, "stream": number % 2 == 0}
            with send(api.url, body) as connection:
                events = (0, 0, 1, 0, 10, 0)[number % 6]  # otherwise disconnect before the first byte
                received = b""
                while received.count(b"data: ") < events:
                    chunk = connection.recv(4096)
                    if not chunk:
                        return  # it outgrew the pool
                    received += chunk

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(leave, range(100)))
        check_idle(api)
        made = api.metric("generation_tokens_total")
        assert api.complete("x", max_tokens=1)["usage"]["completion_tokens"] == 1
        within(2, lambda: api.metric("generation_tokens_total") == made + 1)
        totals = api.totals()
        assert totals["num_aborted_requests_total"] + totals["num_requests_total"] == 101


@pytest.mark.parametrize("tier", [(), ("--kv-offload-gb", "0.05")], ids=["recompute", "restore"])
def test_a_disconnect_while_retracted_releases_everything(tier: tuple[str, ...], start_daemon: Any) -> None:
    daemon = start_daemon(*SMALL, "--sim-step-ms", "2", *tier)
    scheduler, sizes = psutil.Process(daemon.pids["scheduler"]), []
    with contextlib.closing(Api(daemon.url)) as api:
        for _ in range(10):
            ended = api.totals()["num_ended_while_retracted_total"]
            with contextlib.ExitStack() as connections:
                for number in range(10):
                    body = {"prompt": f"{number} tide " * 12, "max_tokens": 900, **GREEDY, "stream": number % 2 == 0}
                    connections.enter_context(send(api.url, body))
                while True:  # the retracted requests may resume before the pause
                    within(60, lambda: api.totals()["num_retracted_reqs"] >= 3)
                    assert api.http.post("/pause_generation").status_code == 200
                    if unchanged(api, "num_retracted_reqs", 0.2):
                        break
                    assert api.http.post("/continue_generation").status_code == 200
                check_scrape(api.totals())
            within(60, lambda: api.load() == 0)
            assert api.http.post("/continue_generation").status_code == 200
            check_idle(api)
            assert api.totals()["num_ended_while_retracted_total"] > ended
            sizes.append(scheduler.memory_info().rss)
        assert (api.metric("kv_offloaded_tokens_total") > 0) is bool(tier)
        assert api.metric("num_requests_total") == 0
    assert sizes[-1] - sizes[1] < 8 << 20, sizes
