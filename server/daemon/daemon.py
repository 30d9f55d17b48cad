"""Runs the daemon on its event loop: waits for the engine, serves, restarts a failed engine and drains.

The import of this module takes as long as the import of torch: import it while the engine is loading.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any, TypeVar

from ebbtide.config import AccessConfig, ServeConfig
from ebbtide.errors import StartupError
from ebbtide.runtime.child import WATCHDOG_EXIT_CODE
from ebbtide.runtime.garbage import collect_rarely
from ebbtide.tokenization.tokenizer import TextTokenizer
from ebbtide.tokenization.tokenizer_cache import load_cached_tokenizer

from ..api.pooling.pooling_model import EncoderModel
from ..frontend import Frontend
from ..http.http_server import http_server, wire_limits
from ..http.listening import url_of
from ..http.tls import Tls
from ..loaded_models import ChatModelParts, LoadedModels
from ..metrics.liveness import front_timeout_s
from .announcement import announce, log_sizes
from .children import Children, Ready
from .dump_on_signal import dump_on_signal
from .engine import Engine
from .loading import AppSwitch, ProgressLine
from .restarts import Restarts
from .service_manager import ServiceManager
from .silent_children import kill_silent_children
from .stop_signals import StopSignals

log = logging.getLogger(__name__)
T = TypeVar("T")

DRAIN_POLL_S = 0.05  # seconds between two checks for open requests while draining


def run_daemon(
    config: ServeConfig,
    engine: Engine,
    listener: socket.socket,
    signals: StopSignals,
    service: ServiceManager,
    tls: Tls | None,
) -> int:
    """Serve until a stop signal arrives. Return the exit code, as described at ``launch``."""
    daemon = _Daemon(config, engine, listener, signals, service, tls)
    with asyncio.Runner(loop_factory=daemon.http.config.get_loop_factory()) as runner:
        return runner.run(daemon.run())


def _page_access(config: ServeConfig) -> AccessConfig:
    """Return the access settings; without a chat model, the server has no console."""
    return config.access if config.model else replace(config.access, disable_console=True)


class _Daemon:
    """The front process on its event loop, from loading to the last response."""

    def __init__(
        self,
        config: ServeConfig,
        engine: Engine,
        listener: socket.socket,
        signals: StopSignals,
        service: ServiceManager,
        tls: Tls | None,
    ) -> None:
        self._config = config
        self._engine = engine
        self._tokenizer: TextTokenizer | None = None
        self._listener = listener
        self._signals = signals
        self._service = service
        self._restarts = Restarts(config.watchdog.restart_on_failure)
        self._is_restarting = False
        self._progress = ProgressLine(logs=config.log.log_format == "json")
        self._app_switch = AppSwitch(_page_access(config), lambda: self._progress.step)
        self._tls = tls
        self.http = http_server(self._app_switch, tls, wire_limits(config.limits))

    async def run(self) -> int:
        """Load, serve and stop. Returns the exit code. Raises StartupError if a child process cannot start."""
        self._signals.attach(asyncio.get_running_loop())
        self._children = Children(self._engine.children, self._progress.show)
        http = asyncio.create_task(self.http.serve(sockets=[self._listener]), name="http")
        front: Frontend | None = None
        try:
            front = await self._run_until_stopped(self._start())
            return 0 if front is None else await self._serve(front, http)
        finally:
            self._progress.clear()
            self._children.close()
            self.http.stop()
            await http
            if front is not None:
                await front.stop()

    async def _run_until_stopped(self, work: Coroutine[Any, Any, T]) -> T | None:
        """Return the result of ``work``. If a stop signal arrives first, cancel ``work`` and return None."""
        working = asyncio.create_task(work, name="loading")
        stop = asyncio.create_task(self._signals.first.wait(), name="stop")
        await asyncio.wait({working, stop}, return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()
        if working.done():
            return working.result()
        working.cancel()
        return None

    async def _start(self) -> Frontend:
        names = [files.name for files in (self._engine.files, self._engine.encoder_files) if files is not None]
        self._progress.show(f"Loading {' and '.join(names)}")
        tokenizer, ready = await asyncio.gather(self._load_tokenizer(), self._await_ready())
        models = self._models(tokenizer, ready)
        front = Frontend(self._config, models, self._engine.addresses)
        await front.start()
        dump_on_signal(front, self._engine)
        self._app_switch.switch_to(front.app)
        self._progress.clear()
        url = url_of(self._listener, secure=self._tls is not None)
        self._engine.publish(url, models.names(self._config))
        announce(models, self._config, self._listener, url)
        self._service.notify("READY=1", f"STATUS=serving on {url}")
        collect_rarely()
        return front

    def _models(self, tokenizer: TextTokenizer | None, ready: Ready) -> LoadedModels:
        """Return the loaded models. Raises StartupError if both have the same name."""
        names = self._config.server.served_model_name
        name = names[0] if names else None
        chat = encoder = None
        if self._engine.files is not None and tokenizer is not None and ready.runner is not None:
            chat = ChatModelParts(name or self._engine.files.name, tokenizer, ready.runner)
            name = None  # with both models, --served-model-name is the name of the chat model
        if self._engine.encoder_files is not None and ready.encoder is not None:
            encoder = EncoderModel(name or self._engine.encoder_files.name, ready.encoder)
        if chat is not None and encoder is not None and chat.name == encoder.name:
            raise StartupError(
                f"MODEL and --embedding-model have the same name {chat.name!r}: set --served-model-name."
            )
        return LoadedModels(chat, encoder)

    async def _load_tokenizer(self) -> TextTokenizer | None:
        """Load the tokenizer and send its vocabulary to the detokenizer. Both steps are slow and run in threads.

        Returns None if there is no chat model.
        """
        files = self._engine.files
        if files is not None:
            self._tokenizer = await asyncio.to_thread(load_cached_tokenizer, files)
            await self._send_vocabulary()
        return self._tokenizer

    async def _send_vocabulary(self) -> None:
        if self._tokenizer is not None:
            await asyncio.to_thread(self._engine.send_vocabulary, self._tokenizer.vocabulary)

    async def _await_ready(self) -> Ready:
        """Wait until all child processes are ready. Raises StartupError if one fails, or after the load timeout.

        The timeout is needed for stopped processes (SIGSTOP). A child that hangs while loading exits earlier.
        """
        limit_s = front_timeout_s(self._config.watchdog.load_timeout)
        try:
            async with asyncio.timeout(limit_s):
                return await self._children.ready
        except TimeoutError:
            raise StartupError(f"The engine was not ready within {limit_s:.0f} s (--load-timeout).") from None

    async def _serve(self, front: Frontend, http: asyncio.Task[None]) -> int:
        stop = asyncio.create_task(self._signals.first.wait(), name="stop")
        silence = asyncio.create_task(
            kill_silent_children(front, self._engine, self._config.watchdog.watchdog_timeout), name="silence"
        )
        failed = asyncio.create_task(front.failed.wait(), name="failed")
        alive = asyncio.create_task(self._service.keep_alive(lambda: self._unhealthy_reason(front)), name="alive")
        try:
            while True:
                bugs: set[asyncio.Future[Any]] = {http, silence, failed}  # these tasks end only because of a bug
                either: set[asyncio.Future[Any]] = {stop, self._children.ended, *bugs}
                await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
                if any(task.done() for task in bugs):
                    front.abort_all("The server has failed.")
                    return 1
                if not self._children.ended.done():
                    await self._drain(front)
                if not self._children.ended.done():
                    return 0
                code = self._on_child_death(front)
                if stop.done() or not self._restarts.remaining:
                    return code
                self._is_restarting = True
                if not await self._restart(front):
                    return 0 if self._signals.first.is_set() else code
        finally:
            for task in (stop, silence, failed, alive):
                task.cancel()

    def _unhealthy_reason(self, front: Frontend) -> str | None:
        """Return the reason for which the service manager should restart the daemon; None while it restarts itself."""
        return None if self._is_restarting else front.liveness.unhealthy_reason()

    def _on_child_death(self, front: Frontend) -> int:
        """Fail the open requests after a child process has ended. Return the exit code if there is no restart."""
        child = self._children.ended.result()
        log.error("%s", child.exit_description())
        front.on_child_death(child.title)
        return WATCHDOG_EXIT_CODE if child.was_stuck else 1

    async def _restart(self, front: Frontend) -> bool:
        """Restart the engine. Return True on success, False if no restart is left or a stop signal arrives."""
        while self._restarts.remaining:
            delay_s = self._restarts.record_restart()
            log.warning("restarting the engine in %.1f s (%d restarts left)", delay_s, self._restarts.remaining)
            self._children.close()
            await asyncio.to_thread(self._engine.stop)
            await self._run_until_stopped(asyncio.sleep(delay_s))
            if self._signals.first.is_set():
                break
            self._engine.restart()
            self._children = Children(self._engine.children, self._progress.show)
            front.liveness.mark_restarting()
            self._service.notify("STATUS=the engine has failed and is restarting")
            try:
                return await self._run_until_stopped(self._reload(front)) is not None
            except StartupError as error:
                log.error("%s", error)
                front.liveness.mark_dead("engine")
        return False

    async def _reload(self, front: Frontend) -> bool:
        _, ready = await asyncio.gather(self._send_vocabulary(), self._await_ready())
        await front.reconnect(self._engine.addresses, ready.runner)
        self._progress.clear()
        log.info("the restarted engine is serving")
        self._service.notify("STATUS=serving with a restarted engine")
        self._is_restarting = False
        log_sizes(ready.runner)
        return True

    async def _drain(self, front: Frontend) -> None:
        """Wait until no request is open.

        Abort the remaining requests after the shutdown timeout, after a second signal, or during a pause.
        """
        front.start_draining()
        self._service.notify("STOPPING=1", f"STATUS=draining {front.num_open} open requests")
        timeout_s = self._config.server.shutdown_timeout
        if front.liveness.is_paused:
            log.info("stopping: the engine is paused, so %d open requests cannot finish", front.num_open)
        else:
            log.info("stopping: waiting up to %.0f s for %d open requests", timeout_s, front.num_open)
        deadline = time.monotonic() + timeout_s
        second_signal = asyncio.create_task(self._signals.second.wait(), name="second_signal")
        either: set[asyncio.Future[Any]] = {second_signal, self._children.ended}
        while front.num_open and not front.liveness.is_paused and time.monotonic() < deadline:
            if any(future.done() for future in either):
                break
            await asyncio.wait(either, timeout=DRAIN_POLL_S, return_when=asyncio.FIRST_COMPLETED)
        second_signal.cancel()
        if front.num_open and not self._children.ended.done():
            log.warning("aborting %d requests that did not finish in time", front.num_open)
            front.abort_all("The server is shutting down.")
