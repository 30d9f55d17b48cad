"""What must hold at every scrape, and what must hold once nothing is asked any more."""

from __future__ import annotations

import json
import socket
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

LIMIT_S = 2.0  # a second for an abort, and the next statistics
IDLE_AT_ZERO = ("num_running_reqs", "num_queue_reqs", "num_retracted_reqs", "token_usage", "gen_throughput")
POOL = ("kv_available_tokens", "kv_evictable_tokens", "kv_protected_tokens", "kv_session_held_tokens")


def within(limit_s: float, claim: Callable[[], bool]) -> None:
    """Ask until ``claim`` holds; each question is a request of its own, so nothing sleeps."""
    deadline = time.monotonic() + limit_s
    while not claim():
        assert time.monotonic() < deadline, "it did not happen in time"


def send(url: str, body: dict[str, Any]) -> socket.socket:
    """A raw connection on which a completion was asked for."""
    host, port = url.removeprefix("http://").split(":")
    data = json.dumps(body).encode()
    head = ["POST /v1/completions HTTP/1.1", "Host: x", "Content-Type: application/json"]
    connection = socket.create_connection((host, int(port)), timeout=30)
    connection.sendall("\r\n".join([*head, f"Content-Length: {len(data)}", "", ""]).encode() + data)
    return connection


def check_scrape(totals: Counter[str]) -> None:
    """Retractions are conserved exactly, the pool's parts add up, and the books were never wrong."""
    back = totals["num_resumed_requests_total"] + totals["num_ended_while_retracted_total"]
    assert totals["num_retracted_requests_total"] == back + totals["num_retracted_reqs"]
    assert totals["kv_invariant_violations_total"] == 0
    assert all(totals[name] >= 0 for name in IDLE_AT_ZERO)


def check_idle(api: Any) -> None:
    """Within two seconds nothing runs, waits or is open, every gauge of load reads 0 and every page is back."""
    within(LIMIT_S, lambda: not any(api.totals()[name] for name in (*IDLE_AT_ZERO, "open_http_requests")))
    check_scrape(api.totals())
    bar = api.http.get("/pressure").json()
    for name, pool in bar["pools"].items():
        assert pool["available"] + pool["evictable"] == pool["total"], (name, pool)
    assert bar["pools"]["full"]["total"] == bar["max_total_num_tokens"]
