"""The application with a scripted engine: the whole front in one process."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from socket import socket
from typing import Any

import httpx
import pytest
from msgspec import structs

from ebbtide.config import ServerConfig
from ebbtide.messages import (
    AbortReq,
    EncodeReq,
    FinishReq,
    GenerateReq,
    PoolInfo,
    Reply,
    RunnerInfo,
    TextAlternative,
    TextBatch,
    TextItem,
    TextLogprob,
    ToEngine,
)
from ebbtide.server.app import create_app
from ebbtide.server.http.http_server import http_server
from ebbtide.server.http.listening import listen, url_of
from ebbtide.server.metrics.liveness import Liveness
from ebbtide.server.metrics.metrics import FrontMetrics
from ebbtide.server.parsers.chat_template_profile import ChatTemplateProfile
from ebbtide.server.state import AppState
from ebbtide.server.structured.structured import StructuredOutput
from ebbtide.tokenization.tokenizer import SimTokenizer
from ebbtide.tokenization.vocabulary import SIM_EOS, SIM_VOCAB_SIZE
from ebbtide.tokenizer_mgr.control_client import ControlClient
from ebbtide.tokenizer_mgr.manager import TokenizerManager
from ebbtide.tokenizer_mgr.prompts import PromptReader

INFO = RunnerInfo(
    context_length=512,
    vocab_size=SIM_VOCAB_SIZE,
    pools=(PoolInfo(16, 16),),
    num_rows=8,
    eos_token_ids=(SIM_EOS,),
)
LARGE_INFO = structs.replace(INFO, context_length=8192, pools=(PoolInfo(512, 16),))


def ok(reply: httpx.Response) -> httpx.Response:
    """``reply``, which must be a success."""
    assert reply.status_code == 200, reply.text
    return reply


@dataclass
class ScriptedEngine:
    """Replaces scheduler, runner and detokenizer: each choice gets ``reply`` one byte at a time, then ``finish``."""

    reply: str = "Hello!"
    finish: str = "stop"
    held: bool = False
    full: bool = False
    answer: Callable[[GenerateReq], object] | None = None
    encode: Callable[[EncodeReq], object] | None = None
    on_call: Callable[[Any], Reply] | None = None
    manager: TokenizerManager | None = None
    control: ControlClient | None = None
    requests: list[Any] = field(default_factory=list)
    aborts: list[AbortReq] = field(default_factory=list)
    finishes: list[FinishReq] = field(default_factory=list)
    heard: threading.Event = field(default_factory=threading.Event)
    loop: asyncio.AbstractEventLoop | None = None

    def send(self, message: ToEngine) -> bool:
        if self.full:
            return False
        self.loop = asyncio.get_running_loop()
        match message:
            case GenerateReq():
                self.requests.append(message)
                self._answer(message)
            case EncodeReq() if self.encode is not None:
                self.requests.append(message)
                self.loop.call_soon(self.encode, message)
            case AbortReq():
                self.aborts.append(message)
            case FinishReq():
                self.finishes.append(message)
            case _:
                assert self.control is not None
                assert self.on_call is not None
                asyncio.get_running_loop().call_soon(self.control.resolve, self.on_call(message))
        self.heard.set()
        return True

    def _answer(self, request: GenerateReq) -> None:
        loop = asyncio.get_running_loop()
        if self.answer is not None:
            loop.call_soon(self.answer, request)
        elif not self.held:
            loop.call_soon(self._step, request, 0)

    def release(self) -> None:
        """Answer the requests that were held, and hold no further ones. Call it from any thread."""
        assert self.loop is not None
        self.held = False
        for request in self.requests:
            self.loop.call_soon_threadsafe(self._step, request, 0)

    def emit(self, rid: str, text: str, num: int, **more: Any) -> None:
        """Send one text item for ``rid`` that ends at output token ``num``."""
        assert self.manager is not None
        item = TextItem(rid, text, tokens=[ord(text[0]) % 256] if text else [], num_output_tokens=num, **more)
        self.manager.handle(TextBatch([item]))

    def abort(self, rid: str, num: int = 0, **more: Any) -> None:
        """Let the scheduler abort ``rid``."""
        assert self.manager is not None
        self.manager.handle(AbortReq(rid, "kv_cache_exhausted", 500, "kv_cache_exhausted", "no room", num, **more))

    def abort_after_a_token(self, request: GenerateReq) -> None:
        """As ``answer``: send one token of the request, then let the scheduler abort it."""
        [rid] = request.rids
        self.emit(rid, "x", 1)
        self.abort(rid, 1)
        self.emit(rid, "", 1, finish="abort")

    def _step(self, request: GenerateReq, position: int) -> None:
        for choice, rid in enumerate(request.rids):
            last = position == len(self.reply) - 1
            self.emit(
                rid,
                self.reply[position],
                position + 1,
                finish=self.finish if last else None,
                cached_tokens=(3 if choice == 0 else len(request.prompt)) if position == 0 else None,
                logprobs=self._logprobs(request, position),
            )
        if position + 1 < len(self.reply):
            asyncio.get_running_loop().call_soon(self._step, request, position + 1)

    def _logprobs(self, request: GenerateReq, position: int) -> list[TextLogprob] | None:
        count = request.sampling.logprobs
        if count is None:
            return None
        chosen = TextAlternative(self.reply[position], self.reply[position].encode(), -0.5, ord(self.reply[position]))
        top = [
            TextAlternative(f"{position}.{rank}", f"{position}.{rank}".encode(), -1.0 - rank, rank)
            for rank in range(count)
        ]
        return [TextLogprob(chosen, top)]


@dataclass
class World:
    """A front with a scripted engine, and a client."""

    engine: ScriptedEngine
    state: AppState
    client: httpx.AsyncClient

    async def chat(self, **fields: Any) -> httpx.Response:
        body = {"messages": [{"role": "user", "content": "hi"}], **fields}
        return await self.client.post("/v1/chat/completions", json=body)

    async def complete(self, **fields: Any) -> httpx.Response:
        return await self.client.post("/v1/completions", json={"prompt": "hi", **fields})


def build_state(
    engine: ScriptedEngine,
    config: ServerConfig,
    info: RunnerInfo = INFO,
    prompts: PromptReader | None = None,
    **more: Any,
) -> AppState:
    metrics = FrontMetrics("sim")
    manager = TokenizerManager(engine, metrics, time.monotonic)
    engine.manager, engine.control = manager, ControlClient(engine)
    liveness = Liveness(time.monotonic)
    liveness.mark_started()
    metrics.gauge("open_http_requests", lambda: manager.num_open)
    return AppState(
        config=config,
        model_name="org/sim",
        manager=manager,
        control=engine.control,
        prompts=prompts or PromptReader(SimTokenizer(), info),
        structured=StructuredOutput(SimTokenizer().vocabulary, info, config.grammar_timeout),
        metrics=metrics,
        liveness=liveness,
        created=1,
        **more,
    )


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def engine() -> ScriptedEngine:
    return ScriptedEngine()


@pytest.fixture
def config() -> ServerConfig:
    return ServerConfig(keep_alive_s=0, max_body_bytes=200_000)


@pytest.fixture
def info(request: pytest.FixtureRequest) -> RunnerInfo:
    """The sizes of the engine: ``RUNNER_INFO`` of the test module if it has one."""
    return getattr(request.module, "RUNNER_INFO", INFO)


@pytest.fixture
def profile(request: pytest.FixtureRequest) -> ChatTemplateProfile:
    """The model's chat template: ``PROFILE`` of the test module if it has one."""
    return getattr(request.module, "PROFILE", ChatTemplateProfile())


@pytest.fixture
def prompts() -> PromptReader | None:
    """The tokenizer; None for that of the simulated model."""
    return None


@pytest.fixture
async def world(
    engine: ScriptedEngine,
    config: ServerConfig,
    info: RunnerInfo,
    profile: ChatTemplateProfile,
    prompts: PromptReader | None,
) -> AsyncIterator[World]:
    state = build_state(engine, config, info, prompts, profile=profile)
    transport = httpx.ASGITransport(create_app(state), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        yield World(engine, state, client)
    state.prompts.close()
    state.structured.close()


@dataclass
class Served:
    """The application behind a real socket, in a thread."""

    url: str
    engine: ScriptedEngine
    state: AppState
    loop: asyncio.AbstractEventLoop

    def on_loop(self, call: Callable[[], object]) -> None:
        """Run ``call`` on the server's event loop and wait for it."""
        done = threading.Event()
        self.loop.call_soon_threadsafe(call)
        self.loop.call_soon_threadsafe(done.set)
        assert done.wait(10)


@pytest.fixture
def served(engine: ScriptedEngine, config: ServerConfig) -> Iterator[Served]:
    state = build_state(engine, config)
    listening = threading.Event()
    loops: list[asyncio.AbstractEventLoop] = []

    async def started(sockets: list[socket] | None = None) -> None:
        await startup(sockets)
        loops.append(asyncio.get_running_loop())
        listening.set()

    listener = listen("127.0.0.1", 0, slow_reader_timeout_s=config.slow_reader_timeout)
    server = http_server(create_app(state), None)
    startup = server.startup
    server.startup = started  # type: ignore[method-assign]
    thread = threading.Thread(target=server.run, args=([listener],))
    thread.start()
    assert listening.wait(20)
    yield Served(url_of(listener), engine, state, loops[0])
    server.stop()
    thread.join(20)
    state.prompts.close()
    state.structured.close()
    assert not thread.is_alive()
