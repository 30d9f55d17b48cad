"""A small OpenAI-compatible server in a thread. The model's name selects its behavior; every request is recorded."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiohttp import web

TOKENS_PER_WORD = 2
TEMPLATE_TOKENS = 5


@dataclass
class FakeOpenAI:
    """The requests that the server received. base_url: ends in /v1."""

    base_url: str = ""
    models: list[str] = field(default_factory=lambda: ["good"])
    loading: bool = False
    bodies: list[dict[str, Any]] = field(default_factory=list)
    authorization: list[str | None] = field(default_factory=list)
    in_flight: int = 0
    most_in_flight: int = 0
    connections: set[Any] = field(default_factory=set)

    @property
    def measured(self) -> list[dict[str, Any]]:
        """The streamed requests, in order of arrival; earlier requests are for calibration only."""
        return [body for body in self.bodies if body.get("stream")]


SERVER = web.AppKey("server", FakeOpenAI)


def prompt_of(body: dict[str, Any]) -> str:
    return str(body["prompt"] if "prompt" in body else body["messages"][0]["content"])


def usage(body: dict[str, Any]) -> dict[str, Any]:
    num_tokens = TEMPLATE_TOKENS + TOKENS_PER_WORD * len(prompt_of(body).split())
    counts = {"prompt_tokens": num_tokens, "completion_tokens": body["max_tokens"]}
    return {**counts, "prompt_tokens_details": {"cached_tokens": 3}}


def chunk(body: dict[str, Any], text: str = "", finish: str | None = None) -> dict[str, Any]:
    if "prompt" in body:
        return {"choices": [{"index": 0, "text": text, "finish_reason": finish}]}
    return {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": finish}]}


async def good(body: dict[str, Any]) -> AsyncIterator[Any]:
    if "messages" in body:
        yield {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}]}
    for _ in range(body["max_tokens"]):
        yield chunk(body, " word")
    yield chunk(body, finish="length")
    yield {"choices": [], "usage": usage(body)}


async def without_usage(body: dict[str, Any]) -> AsyncIterator[Any]:
    async for event in good(body):
        if "usage" not in event:
            yield event


async def slow(body: dict[str, Any]) -> AsyncIterator[Any]:
    async for event in good(body):
        await asyncio.sleep(0.02)
        yield event


async def stuck(body: dict[str, Any]) -> AsyncIterator[Any]:
    yield chunk(body, " word")
    await asyncio.Event().wait()


async def dropped(body: dict[str, Any]) -> AsyncIterator[Any]:
    yield chunk(body, " word")
    raise ConnectionResetError


async def cut_short(body: dict[str, Any]) -> AsyncIterator[Any]:
    yield chunk(body, " word")
    yield None  # an orderly end of the response, before [DONE]


async def fails_midway(body: dict[str, Any]) -> AsyncIterator[Any]:
    yield chunk(body, " word")
    yield {"error": {"message": "the pool is exhausted", "type": "server_error", "code": "kv_cache_exhausted"}}


async def garbage(body: dict[str, Any]) -> AsyncIterator[Any]:
    yield b"data: {not json\n\n"


STREAMS: dict[str, Callable[[dict[str, Any]], AsyncIterator[Any]]] = {
    "good": good,
    "without-usage": without_usage,
    "slow": slow,
    "stuck": stuck,
    "dropped": dropped,
    "cut-short": cut_short,
    "fails-midway": fails_midway,
    "garbage": garbage,
}
BUSY = {"error": {"message": "too many requests wait", "type": "rate_limit_error", "code": "queue_full"}}
LOADING = {"error": {"message": "The model is still loading.", "type": "overloaded_error", "code": "loading"}}


async def answer(request: web.Request) -> web.StreamResponse:
    server: FakeOpenAI = request.app[SERVER]
    body = await request.json()
    server.bodies.append(body)
    server.authorization.append(request.headers.get("Authorization"))
    assert request.transport is not None
    server.connections.add(request.transport.get_extra_info("peername"))
    if body["model"] == "strict" and "ignore_eos" in body:
        return web.json_response({"error": {"message": "Unknown parameter", "code": None}}, status=400)
    if not body.get("stream"):
        return web.json_response({} if body["model"] == "without-usage" else {"usage": usage(body)})
    if body["model"] == "busy":
        return web.json_response(BUSY, status=429)
    if body["model"] == "plain-error":
        return web.Response(text="upstream is away [sorry]", status=502)
    server.in_flight += 1
    server.most_in_flight = max(server.most_in_flight, server.in_flight)
    try:
        return await stream(request, STREAMS.get(body["model"], good)(body))
    finally:
        server.in_flight -= 1


async def stream(request: web.Request, events: AsyncIterator[Any]) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    await response.write(b": a comment line\n\n")
    try:
        async for event in events:
            if event is None:
                return response
            await response.write(event if isinstance(event, bytes) else b"data: %s\n\n" % json.dumps(event).encode())
    except ConnectionResetError:
        assert request.transport is not None
        request.transport.abort()
        return response
    await response.write(b"data: [DONE]\n\n")
    return response


async def list_models(request: web.Request) -> web.Response:
    server: FakeOpenAI = request.app[SERVER]
    if server.loading:
        return web.json_response(LOADING, status=503)
    return web.json_response({"data": [{"id": name} for name in server.models]})


@pytest.fixture
def fake() -> Iterator[FakeOpenAI]:
    """A server on a free port of this machine."""
    server = FakeOpenAI()
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    runner = asyncio.run_coroutine_threadsafe(_start(server), loop).result()
    try:
        yield server
    finally:
        asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def _start(server: FakeOpenAI) -> web.AppRunner:
    app = web.Application()
    app[SERVER] = server
    app.add_routes([web.get("/v1/models", list_models), web.post("/v1/completions", answer)])
    app.add_routes([web.post("/v1/chat/completions", answer)])
    runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    server.base_url = f"http://{host}:{port}/v1"
    return runner
