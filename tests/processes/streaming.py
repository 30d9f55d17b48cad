"""Clients that read streams of a daemon, and the errors that end them."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import httpx


@contextlib.contextmanager
def streams(url: str, count: int, **body: Any) -> Iterator[list[Iterator[str]]]:
    """Open streams, read the first event of each, and yield iterators over the rest."""
    request = {"model": "sim", "prompt": "tide", "stream": True, "ignore_eos": True, "max_tokens": 30_000} | body
    with contextlib.ExitStack() as stack:
        client = stack.enter_context(httpx.Client(timeout=60, limits=httpx.Limits(max_connections=None)))
        opened: list[Iterator[str]] = []
        for _ in range(count):
            response = stack.enter_context(client.stream("POST", f"{url}/v1/completions", json=request))
            events = (line.removeprefix("data: ") for line in response.iter_lines() if line.startswith("data: "))
            next(events)
            opened.append(events)
        yield opened


def rest(events: Iterator[str]) -> list[str]:
    """Return the remaining events. A broken connection shows as a missing end mark."""
    got: list[str] = []
    with contextlib.suppress(httpx.RemoteProtocolError):
        got.extend(events)
    return got


def error_at_the_end(events: Iterator[str]) -> dict[str, Any]:
    """Return the single error that ends a stream; nothing may follow it."""
    *before, last = rest(events)
    assert not any('"error"' in event or event == "[DONE]" for event in before)
    body = json.loads(last)
    assert set(body) == {"error"}
    return dict(body["error"])
