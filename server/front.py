"""The front process in one piece: tokenizer manager, metrics, liveness and the HTTP application, wired to the sockets.

Knows nothing of how processes are started: ``launch`` builds one Front when the children are ready and serves ``app``.
"""

from __future__ import annotations

import asyncio
import time

import zmq
import zmq.asyncio

from ebbtide.channel import AsyncReceiver, Sender
from ebbtide.config import Addresses, ServeConfig
from ebbtide.errors import Rejected
from ebbtide.messages import Heartbeat, PressureEvent, RunnerInfo, Stats, ToFront, ToScheduler
from ebbtide.model_files import ModelFiles
from ebbtide.tokenizer import TextTokenizer
from ebbtide.tokenizer_mgr.manager import TokenizerManager
from ebbtide.tokenizer_mgr.prompts import PromptReader

from .app import create_app
from .liveness import Liveness
from .metrics import FrontMetrics
from .pressure import PressureLog
from .state import AppState


class Front:
    """Everything behind the listening socket. Build it in the front process once the runner's numbers are known.

    Order of use: construct (binds ``addresses.front``), ``await start()`` on the loop that will serve, serve ``app``,
    ``start_draining()`` when asked to end, ``await stop()`` last. ``child_died`` may come at any time, on that loop.
    """

    def __init__(
        self, config: ServeConfig, files: ModelFiles, tokenizer: TextTokenizer, info: RunnerInfo, addresses: Addresses
    ) -> None:
        model_name = config.server.served_model_name or files.name
        self._contexts = (zmq.Context(), zmq.asyncio.Context())
        self._outbox: Sender[ToScheduler] = Sender(self._contexts[0], addresses.scheduler)
        self._inbox: AsyncReceiver[ToFront] = AsyncReceiver(self._contexts[1], addresses.front, ToFront)
        self._metrics = FrontMetrics(model_name)
        self._pressure = PressureLog()
        self.liveness = Liveness(time.monotonic)
        self.manager = TokenizerManager(self._outbox, self._metrics, time.monotonic)
        self._prompts = PromptReader(tokenizer, info)
        self.app = create_app(
            AppState(
                config=config.server,
                model_name=model_name,
                info=info,
                manager=self.manager,
                prompts=self._prompts,
                metrics=self._metrics,
                liveness=self.liveness,
                created=int(time.time()),
                pressure=self._pressure,
            )
        )
        self._metrics.gauge("open_http_requests", lambda: self.manager.num_open)
        self._receiving: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to take messages from the children; from now on ``/ready`` answers 200."""
        self._receiving = asyncio.create_task(self._receive(), name="front-inbox")
        self.liveness.started()

    @property
    def num_open(self) -> int:
        """HTTP requests whose outcome is still open: what draining waits for."""
        return self.manager.num_open

    def start_draining(self) -> None:
        """Answer new work with 503 from now on; what runs goes on."""
        self.liveness.drain()

    def abort_all(self, message: str) -> None:
        """End every open request with 503 (an error event on a stream that has begun)."""
        self.manager.fail_all(Rejected(message, status=503, kind="overloaded_error", code="draining", retry_after_s=5))

    def child_died(self, name: str) -> None:
        """Process ``name`` is gone: every open request is answered with 500 at once, ``/health`` turns 503."""
        self.liveness.died(name)
        self._metrics.scheduler_gone()
        self.manager.fail_all(
            Rejected(f"The {name} process ended unexpectedly.", status=500, kind="server_error", code="engine_dead")
        )

    async def stop(self) -> None:
        """Answer whatever is still open, then close the sockets. The object is done afterwards."""
        self.abort_all("The server is shutting down.")
        if self._receiving is not None:
            self._receiving.cancel()
            await asyncio.gather(self._receiving, return_exceptions=True)
        self._prompts.close()
        self._outbox.close()
        self._inbox.close()
        for context in self._contexts:
            context.term()

    async def _receive(self) -> None:
        while True:
            message = await self._inbox.receive()
            match message:
                case Stats():
                    self._metrics.take(message)
                case PressureEvent():
                    self._pressure.add(message)
                case Heartbeat(source=source):
                    self.liveness.beat(source)
                case _:
                    self.manager.handle(message)
