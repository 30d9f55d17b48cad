"""Assembles the front process: tokenizer manager, metrics, liveness and the HTTP application, connected to the engine.

The module starts no processes: the daemon builds one Frontend when its child processes are ready, and serves ``app``.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass

from starlette.types import ASGIApp

from ebbtide.config import Addresses, ServeConfig
from ebbtide.errors import Rejected
from ebbtide.messages import (
    EncodedBatch,
    Heartbeat,
    PhaseChanges,
    PressureEvent,
    Reply,
    RunnerInfo,
    Stats,
    ToFront,
    UseVocabulary,
)
from ebbtide.runtime.suspend_aware_clock import SuspendAwareClock
from ebbtide.tokenization.vocabulary import Vocabulary
from ebbtide.tokenizer_mgr.control_client import ControlClient
from ebbtide.tokenizer_mgr.engine_link import EngineLink
from ebbtide.tokenizer_mgr.manager import TokenizerManager
from ebbtide.tokenizer_mgr.prompts import PromptReader
from ebbtide.tokenizer_mgr.request_log import RequestLog

from .admin.server_info import public_settings
from .api.pooling.service import PoolingService
from .app import create_app, create_encoder_app
from .http.access import access_from
from .loaded_models import ChatModelParts, LoadedModels
from .metrics.compat import parse_metric_aliases
from .metrics.liveness import Liveness
from .metrics.load_log import LoadLog
from .metrics.metrics import FrontMetrics
from .metrics.pressure_log import PressureLog
from .parsers.chat_template_profile import probe_chat_template
from .state import AppState
from .structured.structured import StructuredOutput
from .tracing.opening import open_tracing

log = logging.getLogger(__name__)

# Seconds without a heartbeat from a child after which the front process itself enforces the request deadlines, instead
# of the scheduler.
TIMEOUT_TAKEOVER_S = 2.0
CHECK_INTERVAL_S = 0.25  # seconds between two checks for silent child processes


@dataclass(frozen=True, slots=True)
class _ChatParts:
    """The parts of the front process that only a chat model needs."""

    prompts: PromptReader
    structured: StructuredOutput
    vocabulary: Vocabulary


class Frontend:
    """The front process without its listening socket. It is created when the child processes are ready.

    Order of use: construct (binds ``addresses.front``), ``await start()`` on the serving event loop, serve ``app``,
    ``start_draining()`` when asked to stop, ``await stop()`` last. ``on_child_death`` may be called at any time from
    that loop.

    Attributes:
        app: the ASGI application.
        manager: tracks the open requests.
        liveness: tracks whether the child processes are alive and ready.
        failed: set if receiving messages from the engine ends because of a bug; the process must then exit.
    """

    def __init__(self, config: ServeConfig, models: LoadedModels, addresses: Addresses) -> None:
        self._link = EngineLink(addresses)
        namings = parse_metric_aliases(config.server.metrics_compat)
        self._metrics = FrontMetrics(models.name, namings, models.context_length)
        self._pressure = PressureLog()
        self._check_interval_s = min(CHECK_INTERVAL_S, config.watchdog.watchdog_timeout / 40)
        self._clock = SuspendAwareClock(time.monotonic, max(2 * self._check_interval_s, 0.5))
        self.liveness = Liveness(self._clock, config.watchdog, models.processes)
        self.manager = TokenizerManager(self._link, self._metrics, time.monotonic, self.liveness.refusal)
        if config.log.log_requests:
            self.manager.request_log = RequestLog(time.monotonic)
        self._tracing = open_tracing(config.tracing, models.page_sizes, self._metrics)
        self.manager.keeps_facts = config.log.log_requests or config.tracing.otlp_endpoint is not None
        self._load_log = LoadLog(self._metrics, time.monotonic, config.log.log_interval)
        self._control = ControlClient(self._link, self.liveness.refusal)
        self._chat: _ChatParts | None = None
        service = PoolingService(
            config=config.server,
            manager=self.manager,
            metrics=self._metrics,
            liveness=self.liveness,
            access=access_from(config.access, config.limits),
            models=() if models.encoder is None else (models.encoder,),
        )
        if models.chat is None:
            self.app = create_encoder_app(service, int(time.time()), self._tracing.wrap)
        else:
            self.app = self._chat_app(config, models.chat, service)
        self._metrics.gauge("open_http_requests", lambda: self.manager.num_open)
        self._metrics.gauge("watchdog_last_progress_seconds", lambda: self.liveness.stalled_s)
        self._receiving: asyncio.Task[None] | None = None
        self._accepts_stats = True  # False after the engine has ended: its late snapshots would count requests twice
        self.failed = asyncio.Event()

    def _chat_app(self, config: ServeConfig, chat: ChatModelParts, service: PoolingService) -> ASGIApp:
        prompts = PromptReader(chat.tokenizer, chat.info)
        if prompts.size_difference:
            log.warning("%s", prompts.size_difference)
        vocabulary = chat.tokenizer.vocabulary
        structured = StructuredOutput(vocabulary, chat.info, config.server.grammar_timeout)
        self._chat = _ChatParts(prompts, structured, vocabulary)
        state = AppState(
            config=config.server,
            model_name=chat.name,
            manager=self.manager,
            control=self._control,
            prompts=prompts,
            structured=structured,
            metrics=self._metrics,
            liveness=self.liveness,
            created=int(time.time()),
            profile=probe_chat_template(chat.tokenizer, config.server.tool_call_parser, config.server.reasoning_parser),
            pressure=self._pressure,
            access=service.access,
            settings=public_settings(config),
            encoder=next(iter(service.models), None),
        )
        return create_app(state, self._tracing.wrap)

    async def start(self) -> None:
        """Start receiving messages from the child processes. After that, ``/ready`` answers 200."""
        if self._chat is not None:
            vocabulary = self._chat.vocabulary
            self._link.send(UseVocabulary(vocabulary.pieces, vocabulary.special_ids, vocabulary.eos_ids))
        self._receiving = asyncio.create_task(self._receive(), name="front-inbox")
        self._receiving.add_done_callback(self._on_receiving_ended)
        self.liveness.mark_started()

    async def reconnect(self, addresses: Addresses, info: RunnerInfo | None) -> None:
        """Connect to new child processes, whose addresses and pool size may differ."""
        await self._stop_receiving()
        if self._chat is not None and info is not None:
            self._chat.prompts.info = info
        self._link.reconnect(addresses)
        self._accepts_stats = True
        await self.start()

    async def wait_for_timed_out_child(self) -> str:
        """Wait until a child process exceeds its heartbeat timeout. Return the name of the process."""
        while True:
            await asyncio.sleep(self._check_interval_s)
            self._clock.advance()
            if self.liveness.has_silent_child(TIMEOUT_TAKEOVER_S):
                self.manager.expire_late()
            child = self.liveness.timed_out_child()
            if child is not None:
                return child

    @property
    def num_open(self) -> int:
        """Number of HTTP requests whose response is not complete. Draining waits for them."""
        return self.manager.num_open

    def describe(self) -> list[str]:
        """Return lines for a dump: the last heartbeats, and the number of open requests, choices and control calls."""
        return [
            *self.liveness.describe(),
            f"open HTTP requests: {self.manager.num_open}, with {self.manager.num_choices} choices",
            f"open control calls: {self._control.num_open}",
        ]

    def start_draining(self) -> None:
        """Answer new requests with 503; open requests continue."""
        self.liveness.start_draining()

    def abort_all(self, message: str) -> None:
        """End every open request with 503, or with an error event if its stream has started."""
        error = Rejected(message, status=503, kind="overloaded_error", code="draining", retry_after_s=5)
        self.manager.fail_all(error)
        self._control.fail_all(error)

    def on_child_death(self, name: str) -> None:
        """Handle the end of the process ``name``: fail every open request with 500, and make ``/health`` answer 503."""
        self.liveness.mark_dead(name)
        self._metrics.on_scheduler_death(self.manager.take_num_sent())
        self._pressure.on_scheduler_death()
        self._tracing.on_scheduler_death()
        self._accepts_stats = False
        error = Rejected(f"The {name} process ended unexpectedly.", status=500, kind="server_error", code="engine_dead")
        self.manager.fail_all(error)
        self._control.fail_all(error)
        self._link.disconnect()

    async def stop(self) -> None:
        """End open requests and close the sockets. The object cannot be used afterwards."""
        self.abort_all("The server is shutting down.")
        await self._stop_receiving()
        if self._chat is not None:
            self._chat.prompts.close()
            self._chat.structured.close()
        await self._tracing.stop()
        self._link.close()

    async def _stop_receiving(self) -> None:
        if self._receiving is not None:
            self._receiving.cancel()
            await asyncio.gather(self._receiving, return_exceptions=True)

    def _on_receiving_ended(self, task: asyncio.Task[None]) -> None:
        """Set ``failed``: a front process that receives no messages would look alive but answer no request."""
        if not task.cancelled():
            log.critical("the front process has stopped receiving messages from the engine", exc_info=task.exception())
            self.failed.set()

    async def _receive(self) -> None:
        while True:
            self._handle(await self._link.receive())

    def _handle(self, message: ToFront) -> None:
        match message:
            case Stats():
                if self._accepts_stats:
                    self._metrics.apply_stats(message)
                    self._load_log.on_snapshot()
                    self._pressure.resumed(message.resumptions)
            case PressureEvent():
                self._pressure.add(message)
                self._tracing.handle(message)
            case PhaseChanges():
                self._tracing.handle(message)
            case Heartbeat():
                self.liveness.record_heartbeat(message)
            case Reply():
                self._control.resolve(message)
            case EncodedBatch():
                self._metrics.observe("embedding_batch_inputs", len(message.items))
                self._metrics.observe("embedding_batch_seconds", message.seconds)
                self.manager.handle(message)
            case _:
                self.manager.handle(message)
