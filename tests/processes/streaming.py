"""Clients of a daemon that read streams, and what they are told at the end."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import httpx


@contextlib.contextmanager
def streams(url: str, count: int, **body: Any) -> Iterator[list[Iterator[str]]]:
    """Streaming answers whose first event has come, as iterators of the data that follows."""
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
    """All that still comes; a connection that breaks off is told apart by its lack of an end."""
    got: list[str] = []
    with contextlib.suppress(httpx.RemoteProtocolError):
        got.extend(events)
    return got


def error_at_the_end(events: Iterator[str]) -> dict[str, Any]:
    """The error that a stream ends with: one, and nothing after it."""
    *before, last = rest(events)
    assert not any('"error"' in event or event == "[DONE]" for event in before)
    body = json.loads(last)
    assert set(body) == {"error"}
    return dict(body["error"])
