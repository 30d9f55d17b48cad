"""Runs the daemon on its event loop: waits for the engine, serves, restarts a failed engine and drains.

The import of this module takes as long as that of torch: import it while the engine loads.
"""

from __future__ import annotations

import asyncio
import json
import logging
import shlex
import socket
import time
from collections.abc import Coroutine
from typing import Any, TypeVar

from ebbtide.config import ServeConfig
from ebbtide.errors import StartupError
from ebbtide.messages import RunnerInfo
from ebbtide.runtime.child import WATCHDOG_EXIT_CODE
from ebbtide.runtime.garbage import collect_rarely
from ebbtide.tokenization.tokenizer import TextTokenizer
from ebbtide.tokenization.tokenizer_cache import load_cached_tokenizer

from ..frontend import Frontend
from ..http.api_keys import no_auth_warning
from ..http.http_server import http_server, wire_limits
from ..http.listening import url_of
from ..http.tls import Tls
from ..metrics.liveness import FRONT_TIMEOUT_FACTOR
from .children import Children
from .dump_on_signal import dump_on_signal
from .engine import Engine
from .loading import AppSwitch, ProgressLine
from .restarts import Restarts
from .service_manager import ServiceManager
from .silent_children import kill_silent_children
from .stop_signals import StopSignals

log = logging.getLogger(__name__)
T = TypeVar("T")

DRAIN_POLL_S = 0.05  # interval at which draining checks for open requests


def run_daemon(
    config: ServeConfig,
    engine: Engine,
    listener: socket.socket,
    signals: StopSignals,
    service: ServiceManager,
    tls: Tls | None,
) -> int:
    """Serve until a stop signal, and return the exit code; see ``launch``."""
    daemon = _Daemon(config, engine, listener, signals, service, tls)
    with asyncio.Runner(loop_factory=daemon.http.config.get_loop_factory()) as runner:
        return runner.run(daemon.run())


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
        self._files = engine.files
        self._engine = engine
        self._listener = listener
        self._signals = signals
        self._service = service
        self._restarts = Restarts(config.watchdog.restart_on_failure)
        self._progress = ProgressLine(logs=config.log.log_format == "json")
        self._app_switch = AppSwitch()
        self._tls = tls
        self.http = http_server(self._app_switch, tls, wire_limits(config.limits))

    async def run(self) -> int:
        """Load, serve and stop. Returns the exit code. Raises StartupError if a child cannot start."""
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
            self.http.should_exit = True
            await http
            if front is not None:
                await front.stop()

    async def _run_until_stopped(self, work: Coroutine[Any, Any, T]) -> T | None:
        """Return the result of ``work``, or cancel it and return None if a stop signal comes first."""
        working = asyncio.create_task(work, name="loading")
        stop = asyncio.create_task(self._signals.first.wait(), name="stop")
        await asyncio.wait({working, stop}, return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()
        if working.done():
            return working.result()
        working.cancel()
        return None

    async def _start(self) -> Frontend:
        self._progress.show(f"Loading {self._files.name}")
        tokenizer, runner = await asyncio.gather(self._load_tokenizer(), self._await_ready())
        front = Frontend(self._config, self._files, tokenizer, runner, self._engine.addresses)
        await front.start()
        dump_on_signal(front, self._engine)
        self._app_switch.switch_to(front.app)
        self._progress.clear()
        self._print_address(runner)
        self._service.notify("READY=1", f"STATUS=serving on {url_of(self._listener, secure=self._tls is not None)}")
        collect_rarely()
        return front

    async def _load_tokenizer(self) -> TextTokenizer:
        """Load the tokenizer and send its vocabulary to the detokenizer. Both steps are slow and run in threads."""
        self._tokenizer = await asyncio.to_thread(load_cached_tokenizer, self._files)
        await asyncio.to_thread(self._engine.send_vocabulary, self._tokenizer.vocabulary)
        return self._tokenizer

    async def _await_ready(self) -> RunnerInfo:
        """Wait until all children are ready. Raises StartupError after the load timeout.

        The timeout is for stopped processes (SIGSTOP), because a child that hangs while loading exits earlier.
        """
        limit_s = self._config.watchdog.load_timeout * FRONT_TIMEOUT_FACTOR
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
        alive = asyncio.create_task(self._service.keep_alive(front.liveness.unhealthy_reason), name="alive")
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
                if not await self._restart(front):
                    return 0 if self._signals.first.is_set() else code
        finally:
            for task in (stop, silence, failed, alive):
                task.cancel()

    def _on_child_death(self, front: Frontend) -> int:
        """Fail open requests after a child has ended. Returns the exit code to use if the engine is not restarted."""
        child = self._children.ended.result()
        log.error("%s", child.exit_description())
        front.on_child_death(child.title)
        return WATCHDOG_EXIT_CODE if child.was_stuck else 1

    async def _restart(self, front: Frontend) -> bool:
        """Restart the engine. Returns False if no restart is left or a stop signal arrived, else True."""
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
        vocabulary = self._tokenizer.vocabulary
        sending = asyncio.to_thread(self._engine.send_vocabulary, vocabulary)
        _, runner = await asyncio.gather(sending, self._await_ready())
        await front.reconnect(self._engine.addresses, runner)
        self._progress.clear()
        log.info("the restarted engine is serving")
        self._service.notify("STATUS=serving with a restarted engine")
        _log_sizes(runner)
        return True

    async def _drain(self, front: Frontend) -> None:
        """Wait for open requests.

        Abort the remaining ones after the shutdown timeout, after a second signal, or during a pause.
        """
        front.start_draining()
        self._service.notify("STOPPING=1", f"STATUS=draining {front.num_open} open requests")
        timeout_s = self._config.server.shutdown_timeout
        if front.liveness.is_paused:
            log.info("stopping: the engine is paused, so %d open requests cannot end", front.num_open)
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
            log.warning("aborting %d requests that did not end in time", front.num_open)
            front.abort_all("The server is shutting down.")

    def _print_address(self, runner: RunnerInfo) -> None:
        _log_sizes(runner)
        url = url_of(self._listener, secure=self._tls is not None)
        name = self._config.server.served_model_name or self._files.name
        body = {"model": name, "messages": [{"role": "user", "content": "What is a tide?"}], "stream": True}
        warning = no_auth_warning(self._config.access, self._listener.getsockname()[0])
        if warning is not None:
            log.warning("%s", warning)
        key = "-H 'x-api-key: YOUR KEY' " if self._config.access.api_key else ""
        print(f"ebbtide serves {name} on {url}", flush=True)
        print(
            f"Try it:  curl -N {url}/v1/chat/completions -H 'Content-Type: application/json' {key}"
            f"-d {shlex.quote(json.dumps(body))}",
            flush=True,
        )


def _log_sizes(runner: RunnerInfo) -> None:
    if runner.num_host_pages:
        log.info("host tier: %d tokens", runner.num_host_pages * runner.page_size)
    log.info(
        "KV pool: %d tokens in pages of %d (%.0f MiB%s), context %d, %s on %s, %s attention",
        runner.num_pages * runner.page_size,
        runner.page_size,
        runner.pool_bytes / 2**20,
        ", allocated on use" if runner.device == "cpu" else "",
        runner.context_length,
        runner.dtype,
        runner.device,
        runner.attention or "no",
    )
