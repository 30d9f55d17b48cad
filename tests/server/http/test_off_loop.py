"""The event loop of the front does not process large bodies of any shape."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import FrameType
from typing import Any

import httpx
import pytest

from ebbtide.config import ServerConfig
from ebbtide.runtime.garbage import collect_rarely
from ebbtide.server.app import create_app
from ebbtide.server.metrics.liveness import Liveness

from ...http.wire.big_bodies import shapes
from ..conftest import LARGE_INFO, ScriptedEngine, build_state

pytestmark = pytest.mark.anyio

LONGEST_S = 0.05
MAX_LINES = 20_000  # fewer than the elements of a body; client and server together take some thousand
GENERATED = "lists of token ids"  # accepted: the scripted engine answers 1,024 prompts on the same event loop
JSON = {"content-type": "application/json"}


class LineCount:
    """Counts the lines of Python that a thread executes. Time would depend on other processes."""

    def __init__(self) -> None:
        self.count = 0

    def trace(self, frame: FrameType, event: str, argument: object) -> Any:
        """Count an event; used as the trace function of the thread and of each frame."""
        self.count += 1
        return self.trace

    @contextmanager
    def measure(self) -> Iterator[None]:
        """Count within the block."""
        self.count = 0
        before = sys.gettrace()
        sys.settrace(self.trace)
        try:
            yield
        finally:
            sys.settrace(before)


@pytest.mark.slow
async def test_no_shape_of_a_large_body_holds_the_event_loop(engine: ScriptedEngine) -> None:
    state = build_state(engine, ServerConfig(), LARGE_INFO)
    transport = httpx.ASGITransport(create_app(state), raise_app_exceptions=False)
    lines: dict[str, int] = {}
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        for name, path, body in shapes(elements=24_000, text_bytes=1 << 20):
            counted = LineCount()
            with counted.measure():
                reply = await asyncio.create_task(client.post(path, content=body, headers=JSON, timeout=60))
            assert reply.status_code in (200, 400, 413), (name, reply.text[:500])
            lines[name] = counted.count if name != GENERATED else 0
    state.prompts.close()
    state.structured.close()
    assert {name: count for name, count in lines.items() if count > MAX_LINES} == {}


class CallbackTimes:
    """Measures the callbacks of one event loop in processor time, which other processes do not change.

    Threads that prepare a large body have event loops of their own, which do not count.
    """

    def __init__(self) -> None:
        self.longest_s = 0.0
        self._thread = threading.get_ident()

    @contextmanager
    def measure(self) -> Iterator[None]:
        """Measure within the block."""
        original = asyncio.Handle._run
        self.longest_s = 0.0

        def run(handle: asyncio.Handle) -> None:
            started = time.thread_time()
            original(handle)
            if threading.get_ident() == self._thread:
                self.longest_s = max(self.longest_s, time.thread_time() - started)

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(asyncio.Handle, "_run", run)
            yield


@pytest.fixture
def garbage_as_in_the_daemon() -> Iterator[None]:
    before = gc.get_threshold()
    collect_rarely()
    yield
    gc.set_threshold(*before)
    gc.unfreeze()


@pytest.mark.soak
@pytest.mark.usefixtures("garbage_as_in_the_daemon")
async def test_no_callback_of_a_large_body_takes_fifty_milliseconds(engine: ScriptedEngine) -> None:
    """The clock of liveness stands still, because the scripted engine sends no heartbeats."""
    liveness = Liveness(lambda: 0.0)
    liveness.mark_started()
    state = replace(build_state(engine, ServerConfig(), LARGE_INFO), liveness=liveness)
    transport = httpx.ASGITransport(create_app(state), raise_app_exceptions=False)
    longest_s: dict[str, float] = {}
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        for name, path, body in shapes():
            times = CallbackTimes()
            with times.measure():
                reply = await asyncio.create_task(client.post(path, content=body, headers=JSON, timeout=600))
            assert reply.status_code in (200, 400, 413), (name, reply.text[:500])
            longest_s[name] = times.longest_s if name != GENERATED else 0.0
            print(f"| {name} | {len(body) / 1e6:.1f} | {reply.status_code} | {times.longest_s * 1000:.1f} |")
    state.prompts.close()
    state.structured.close()
    assert {name: seconds for name, seconds in longest_s.items() if seconds > LONGEST_S} == {}


async def test_a_constraint_of_a_large_body_is_compiled_and_errors_name_their_field(engine: ScriptedEngine) -> None:
    state = build_state(engine, ServerConfig())
    transport = httpx.ASGITransport(create_app(state), raise_app_exceptions=False)
    padding = {"prompt": "x", "max_tokens": 1, "user": "u" * 100_000}
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        for fields, param in (({"regex": "[ab]+"}, None), ({"regex": "["}, "regex"), ({"top_p": 7}, "top_p")):
            reply = await client.post("/v1/completions", json=padding | fields)
            assert reply.status_code == (400 if param else 200), reply.text
            if param:
                assert reply.json()["error"]["param"] == param
    assert [bool(request.grammar) for request in engine.requests] == [True]
    state.prompts.close()
    state.structured.close()
