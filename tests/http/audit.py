"""Invariants of every scrape, and of an idle server."""

from __future__ import annotations

import json
import socket
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

LIMIT_S = 2.0  # a second for the abort, a second for the next snapshot
IDLE_AT_ZERO = ("num_running_reqs", "num_queue_reqs", "num_retracted_reqs", "token_usage", "gen_throughput")
POOL = ("kv_available_tokens", "kv_evictable_tokens", "kv_protected_tokens", "kv_session_held_tokens")


def within(limit_s: float, claim: Callable[[], bool]) -> None:
    """Poll until ``claim`` holds. Each poll is an HTTP request, so no sleep is needed."""
    deadline = time.monotonic() + limit_s
    while not claim():
        assert time.monotonic() < deadline, "it did not happen in time"


def send(url: str, body: dict[str, Any], path: str = "/v1/completions") -> socket.socket:
    """Open a raw connection and send a request."""
    host, port = url.removeprefix("http://").split(":")
    data = json.dumps(body).encode()
    head = [f"POST {path} HTTP/1.1", "Host: x", "Content-Type: application/json"]
    connection = socket.create_connection((host, int(port)), timeout=30)
    connection.sendall("\r\n".join([*head, f"Content-Length: {len(data)}", "", ""]).encode() + data)
    return connection


def check_scrape(totals: Counter[str]) -> None:
    """Check that retractions are conserved and no invariant was violated."""
    back = totals["num_resumed_requests_total"] + totals["num_ended_while_retracted_total"]
    assert totals["num_retracted_requests_total"] == back + totals["num_retracted_reqs"]
    assert totals["kv_invariant_violations_total"] == 0
    assert all(totals[name] >= 0 for name in IDLE_AT_ZERO)


def check_idle(api: Any) -> None:
    """Check that within two seconds no request is open, all load gauges read 0, and all pages are free or evictable."""
    # The gauges may be those of a snapshot from before the last request started.
    within(LIMIT_S, lambda: _gauges_are_zero(api) and not _pools_in_use(api))
    check_scrape(api.totals())
    bar = api.http.get("/pressure").json()
    assert bar["pools"]["full"]["total"] == bar["max_total_num_tokens"]


def _gauges_are_zero(api: Any) -> bool:
    totals = api.totals()
    return not any(totals[name] for name in (*IDLE_AT_ZERO, "open_http_requests"))


def _pools_in_use(api: Any) -> dict[str, Any]:
    """The pools with pages that are neither free nor evictable."""
    pools: dict[str, Any] = api.http.get("/pressure").json()["pools"]
    return {name: pool for name, pool in pools.items() if pool["available"] + pool["evictable"] != pool["total"]}


def unchanged(api: Any, name: str, seconds: float = 1.5) -> float:
    """The value of a metric after many snapshots (ten a second) have not changed it."""
    value: float = api.metric(name)
    since = time.monotonic()
    deadline = since + 30
    while time.monotonic() < since + seconds:
        new = api.metric(name)
        if new != value:
            value, since = new, time.monotonic()
        assert time.monotonic() < deadline, f"{name} does not come to rest"
    return value
