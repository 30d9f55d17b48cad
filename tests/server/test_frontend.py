"""The front on real sockets, with a scripted engine at the other end."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
import zmq
from msgspec.structs import replace

from ebbtide.config import Addresses, ServeConfig, ServerConfig, WatchdogConfig
from ebbtide.messages import (
    AbortReq,
    GenerateReq,
    Heartbeat,
    PoolInfo,
    PressureEvent,
    RunnerInfo,
    Stats,
    TextBatch,
    TextItem,
    ToFront,
    ToScheduler,
    UseVocabulary,
)
from ebbtide.runtime.channel import Receiver, Sender
from ebbtide.server.frontend import Frontend
from ebbtide.server.loaded_models import ChatModelParts, LoadedModels
from ebbtide.tokenization.tokenizer import SimTokenizer
from ebbtide.tokenization.vocabulary import SIM_EOS, SIM_VOCAB_SIZE, sim_vocabulary

pytestmark = pytest.mark.anyio
INFO = RunnerInfo(512, SIM_VOCAB_SIZE, (PoolInfo(64, 16),), 8, (SIM_EOS,))


@dataclass
class ConnectedFrontend:
    """A started front, a client, and the engine's ends of the channels."""

    front: Frontend
    client: httpx.AsyncClient
    inbox: Receiver[ToScheduler]
    outbox: Sender[ToFront]
    waiting: list[ToScheduler] = field(default_factory=list)

    async def ask(self) -> asyncio.Task[httpx.Response]:
        """Start a completion request."""
        return asyncio.ensure_future(self.client.post("/v1/completions", json={"prompt": "hi", "stop": "!"}))

    async def received(self) -> Any:
        """Return the next message to the scheduler, skipping the vocabulary."""
        while True:
            if not self.waiting:
                self.waiting += await asyncio.to_thread(self.inbox.drain, 10)
            assert self.waiting, "nothing came"
            message = self.waiting.pop(0)
            if not isinstance(message, UseVocabulary):
                return message


@pytest.fixture
async def connected() -> AsyncIterator[ConnectedFrontend]:
    context: zmq.Context[Any] = zmq.Context()
    with tempfile.TemporaryDirectory(prefix="ebb-") as folder:
        addresses = Addresses(*(f"ipc://{Path(folder, name)}" for name in ("front", "scheduler", "detokenizer")))
        config = ServeConfig(model="sim", server=ServerConfig(served_model_name=("tide",)))
        front = Frontend(config, LoadedModels(ChatModelParts("tide", SimTokenizer(), INFO)), addresses)
        inbox: Receiver[ToScheduler] = Receiver(context, addresses.scheduler, ToScheduler)
        outbox: Sender[ToFront] = Sender(context, addresses.front)
        transport = httpx.ASGITransport(front.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            yield ConnectedFrontend(front, client, inbox, outbox)
        await front.stop()
        inbox.close()
        outbox.close()
        context.term()


async def test_a_request_is_sent_and_its_text_is_returned(connected: ConnectedFrontend) -> None:
    assert (await connected.client.get("/ready")).json()["error"]["code"] == "loading"
    await connected.front.start()
    assert (await connected.client.get("/ready")).status_code == 200
    reply = await connected.ask()
    request = await connected.received()
    assert isinstance(request, GenerateReq)
    assert (request.prompt, request.text.stop) == ([*b"hi"], ("!",))
    assert connected.front.num_open == 1
    connected.outbox.send(TextBatch([TextItem(request.rids[0], "tide", [1, 2], 2, finish="length")]))
    body = (await reply).json()
    assert (body["model"], body["choices"][0]["text"]) == ("tide", "tide")
    assert connected.front.num_open == 0


async def test_the_vocabulary_is_sent_to_the_engine_first(connected: ConnectedFrontend) -> None:
    await connected.front.start()
    (told,) = await asyncio.to_thread(connected.inbox.drain, 10)
    vocabulary = sim_vocabulary()
    assert told == UseVocabulary(vocabulary.pieces, vocabulary.special_ids, vocabulary.eos_ids)


async def test_snapshots_and_heartbeats_are_processed(connected: ConnectedFrontend) -> None:
    await connected.front.start()
    connected.outbox.send(Heartbeat("scheduler", 1))
    connected.outbox.send(Stats({"num_running_reqs": 5}, {"prompt_tokens_total": 9}, {}))
    connected.outbox.send(PressureEvent(7, "priority", [], 0, 0, 0.7, 0.8, 1, 3))
    reply = await connected.ask()
    request = await connected.received()
    connected.outbox.send(AbortReq(request.rids[0], "kv_cache_exhausted", 500, "kv_cache_exhausted", "full"))
    assert (await reply).status_code == 500
    page = (await connected.client.get("/metrics")).text
    assert 'ebbtide:num_running_reqs{model_name="tide"} 5.0' in page
    assert 'ebbtide:prompt_tokens_total{model_name="tide"} 9.0' in page
    shown = (await connected.client.get("/pressure")).json()
    assert (shown["num_running_reqs"], shown["events"][0]["cause"]) == (5, "priority")


async def test_a_dead_child_fails_every_open_request_at_once(connected: ConnectedFrontend) -> None:
    await connected.front.start()
    connected.outbox.send(Stats({"num_running_reqs": 5}, {}, {}))
    replies = [await connected.ask() for _ in range(3)]
    for _ in replies:
        await connected.received()
    connected.front.on_child_death("detokenizer")
    for reply in replies:
        assert (await reply).status_code == 500
        assert (await reply).json()["error"]["code"] == "engine_dead"
    assert (await connected.client.get("/health")).status_code == 503
    assert 'ebbtide:num_running_reqs{model_name="tide"} 0.0' in (await connected.client.get("/metrics")).text


async def test_the_death_of_a_child_counts_every_open_choice_once(connected: ConnectedFrontend) -> None:
    await connected.front.start()
    body = {"prompt": ["hi", "ho"], "n": 3}
    reply = asyncio.ensure_future(connected.client.post("/v1/completions", json=body))
    for _ in range(2):
        await connected.received()
    connected.front.on_child_death("scheduler")
    connected.front.on_child_death("detokenizer")
    assert (await reply).status_code == 500
    late = Stats({"num_running_reqs": 6}, {"num_received_requests_total": 6}, {})
    connected.outbox.send(late)
    connected.outbox.send(PressureEvent(7, "priority", [], 0, 0, 0.7, 0.8, 1, 3))
    async with asyncio.timeout(10):
        while not (await connected.client.get("/pressure")).json()["events"]:
            await asyncio.sleep(0)
    page = (await connected.client.get("/metrics")).text
    for line in ("num_received_requests_total{", "num_aborted_requests_total{", "num_running_reqs{"):
        value = 0 if "running" in line else 6
        label = 'reason="engine_dead"' if "aborted" in line else ""
        (found,) = [x for x in page.splitlines() if x.startswith(f"ebbtide:{line}") and label in x]
        assert float(found.split()[-1]) == value, found


async def test_draining_completes_open_requests_and_aborts_them_on_request(connected: ConnectedFrontend) -> None:
    await connected.front.start()
    first, second = await connected.ask(), await connected.ask()
    requests = [await connected.received(), await connected.received()]
    connected.front.start_draining()
    assert (await connected.client.post("/v1/completions", json={"prompt": "x"})).status_code == 503
    connected.outbox.send(TextBatch([TextItem(requests[0].rids[0], "a", [1], 1, finish="stop")]))
    [ended], [_] = await asyncio.wait({first, second}, timeout=10, return_when=asyncio.FIRST_COMPLETED)
    assert ended.result().status_code == 200
    connected.front.abort_all("The server is shutting down.")
    statuses = sorted([(await first).status_code, (await second).status_code])
    assert statuses == [200, 503]
    assert isinstance(await connected.received(), AbortReq)


async def test_invalid_messages_are_dropped(connected: ConnectedFrontend) -> None:
    await connected.front.start()
    connected.outbox.send("not a message")  # type: ignore[arg-type]
    reply = await connected.ask()
    request = await connected.received()
    connected.outbox.send(TextBatch([TextItem(request.rids[0], "ok", [1], 1, finish="stop")]))
    assert (await reply).status_code == 200


async def test_new_children_at_new_addresses_take_over_and_totals_stay(connected: ConnectedFrontend) -> None:
    await connected.front.start()
    connected.outbox.send(Stats({"num_running_reqs": 5}, {"prompt_tokens_total": 9}, {}))
    reply = await connected.ask()
    await connected.received()
    connected.front.on_child_death("scheduler")
    assert (await reply).status_code == 500
    connected.front.liveness.mark_restarting()
    refused = await connected.client.post("/v1/completions", json={"prompt": "x"})
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "engine_restarting")
    with tempfile.TemporaryDirectory(prefix="ebb-") as folder:
        context: zmq.Context[Any] = zmq.Context()
        addresses = Addresses(*(f"ipc://{Path(folder, name)}" for name in ("front", "scheduler", "detokenizer")))
        inbox: Receiver[ToScheduler] = Receiver(context, addresses.scheduler, ToScheduler)
        outbox: Sender[ToFront] = Sender(context, addresses.front)
        await connected.front.reconnect(addresses, INFO)
        connected.outbox.send(Stats({}, {"prompt_tokens_total": 1000}, {}))  # late messages of the old engine are lost
        outbox.send(Stats({"num_running_reqs": 1}, {"prompt_tokens_total": 30}, {}))  # from the new engine
        again = await connected.ask()
        told: list[Any] = []
        while len(told) < 2:
            told += await asyncio.to_thread(inbox.drain, 10)
        vocabulary, request = told
        assert (type(vocabulary), type(request)) == (UseVocabulary, GenerateReq)
        outbox.send(TextBatch([TextItem(request.rids[0], "new", [1], 1, finish="stop")]))
        assert (await again).json()["choices"][0]["text"] == "new"
        page = (await connected.client.get("/metrics")).text
        assert 'ebbtide:prompt_tokens_total{model_name="tide"} 39.0' in page
        inbox.close()
        outbox.close()
        context.term()


async def test_the_sizes_of_a_new_engine_apply(connected: ConnectedFrontend) -> None:
    """A new engine measures its pool again, and may find less memory."""
    await connected.front.start()
    with tempfile.TemporaryDirectory(prefix="ebb-") as folder:
        addresses = Addresses(*(f"ipc://{Path(folder, name)}" for name in ("front", "scheduler", "detokenizer")))
        await connected.front.reconnect(addresses, replace(INFO, context_length=256, pools=(PoolInfo(4, 16),)))
        assert (await connected.client.get("/v1/models")).json()["data"][0]["max_model_len"] == 256
        for length in (100, 300):  # larger than the pool, larger than the context
            refused = await connected.client.post("/v1/completions", json={"prompt": "x" * length})
            assert (refused.status_code, refused.json()["error"]["code"]) == (400, "context_length_exceeded")


async def test_nothing_is_sent_to_a_dead_engine(connected: ConnectedFrontend) -> None:
    """A prompt that was tokenized while the engine died must not wait forever."""
    await connected.front.start()
    connected.front.on_child_death("scheduler")
    connected.front.liveness.mark_restarting()
    connected.front.liveness.mark_started()  # ready by heartbeats, but not reconnected
    reply = await connected.client.post("/v1/completions", json={"prompt": "x"})
    assert (reply.status_code, "Retry-After" in reply.headers) == (503, True)
    assert reply.json()["error"]["code"] == "engine_silent"


async def test_session_and_control_calls_report_why_the_engine_refuses(connected: ConnectedFrontend) -> None:
    await connected.front.start()
    connected.front.on_child_death("scheduler")
    calls = [("GET", "/v1/sessions"), ("GET", "/v1/sessions/x"), ("DELETE", "/v1/sessions/x")]
    bodies = [("POST", "/close_session", {"session_id": "x"}), ("POST", "/flush_cache", {})]
    asked = [*((method, path, None) for method, path in calls), *bodies]
    for code, step in (("engine_dead", None), ("engine_restarting", connected.front.liveness.mark_restarting)):
        if step is not None:
            step()
        for method, path, body in asked:
            reply = await connected.client.request(method, path, json=body)
            assert (reply.status_code, reply.json()["error"]["code"]) == (503, code), path
            assert "Retry-After" in reply.headers


async def test_a_silent_child_is_reported_by_name(connected: ConnectedFrontend) -> None:
    config = ServeConfig(model="sim", watchdog=WatchdogConfig(watchdog_timeout=0.2))
    with tempfile.TemporaryDirectory(prefix="ebb-") as folder:
        addresses = Addresses(*(f"ipc://{Path(folder, name)}" for name in ("front", "scheduler", "detokenizer")))
        front = Frontend(config, LoadedModels(ChatModelParts("sim", SimTokenizer(), INFO)), addresses)
        await front.start()
        assert await asyncio.wait_for(front.wait_for_timed_out_child(), 20) == "scheduler"
        await front.stop()


async def test_a_front_that_stops_receiving_reports_failure(
    connected: ConnectedFrontend, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(message: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(connected.front.manager, "handle", broken)
    await connected.front.start()
    assert not connected.front.failed.is_set()
    connected.outbox.send(TextBatch([]))
    await asyncio.wait_for(connected.front.failed.wait(), 10)
    assert "a bug" in caplog.text
