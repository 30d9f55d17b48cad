"""The life of a daemon: start the children, load, serve, drain, end. Nothing is left behind, whatever happens.

The one place outside ``ebbtide.child`` that knows which modules the processes run.
"""

from __future__ import annotations

import asyncio
import json
import logging
import shlex
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import uvicorn

from ebbtide.child import Child, end_children
from ebbtide.config import DetokenizerSection, SchedulerSection, ServeConfig
from ebbtide.log import setup_logging
from ebbtide.messages import RunnerInfo
from ebbtide.model_files import resolve_model
from ebbtide.tokenizer import TextTokenizer, load_tokenizer

from .children import Children
from .listening import listen, url_of
from .loading import Gate, ProgressLine
from .socket_directory import addresses_in, socket_directory
from .stop_signals import StopSignals

if TYPE_CHECKING:
    from .front import Front

log = logging.getLogger(__name__)

SCHEDULER = "ebbtide.scheduler.process"
DETOKENIZER = "ebbtide.detokenizer.process"
KEEP_ALIVE_S = 75  # longer than the pools of the usual clients keep a connection
REPLY_S = 5  # for answers that are decided to leave
CHILD_GRACE_S = 5.0
DRAIN_LOOK_S = 0.05  # how often draining looks whether the last request has ended


def launch(config: ServeConfig) -> int:
    """Serve until a signal (exit code 0) or until a child ends (1). Main thread only.

    Raises StartupError with one sentence when it cannot start; nothing is left behind then.
    """
    setup_logging("front", config.log.log_level)
    signals = StopSignals()
    signals.install()
    files = resolve_model(config.model)
    with listen(config.server.host, config.server.port) as listener, socket_directory() as directory:
        addresses = addresses_in(directory)
        section = SchedulerSection(files, config.scheduler, config.runner, config.log, addresses)
        with _children(section) as (scheduler, detokenizer):
            daemon = _Daemon(config, section, listener, signals)
            with asyncio.Runner(loop_factory=daemon.http.config.get_loop_factory()) as runner:
                return runner.run(daemon.run(scheduler, detokenizer))


@contextmanager
def _children(section: SchedulerSection) -> Iterator[tuple[Child, Child]]:
    started: list[Child] = []
    try:
        started.append(Child(SCHEDULER, "scheduler"))
        started.append(Child(DETOKENIZER, "detokenizer"))
        started[0].send(section)
        yield started[0], started[1]
    finally:
        end_children(started, CHILD_GRACE_S)


class _HttpServer(uvicorn.Server):
    """uvicorn, which leaves the signals to us."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class _Daemon:
    """The front process on its event loop, from the first child's start to the last answer."""

    def __init__(
        self, config: ServeConfig, section: SchedulerSection, listener: socket.socket, signals: StopSignals
    ) -> None:
        self._config = config
        self._section = section
        self._listener = listener
        self._signals = signals
        self._progress = ProgressLine()
        self._gate = Gate()
        self.http = _HttpServer(
            uvicorn.Config(
                self._gate,
                log_config=None,
                log_level="warning",
                access_log=False,
                lifespan="off",
                ws="none",
                timeout_keep_alive=KEEP_ALIVE_S,
                timeout_graceful_shutdown=REPLY_S,
            )
        )

    async def run(self, scheduler: Child, detokenizer: Child) -> int:
        """The exit code. Raises StartupError when a child cannot start."""
        self._signals.attach(asyncio.get_running_loop())
        children = Children((scheduler, detokenizer), self._progress.show)
        http = asyncio.create_task(self.http.serve(sockets=[self._listener]), name="http")
        front: Front | None = None
        try:
            front = await self._load(children, detokenizer)
            return 0 if front is None else await self._serve(front, children, http)
        finally:
            self._progress.clear()
            children.close()
            self.http.should_exit = True
            await http
            if front is not None:
                await front.stop()

    async def _load(self, children: Children, detokenizer: Child) -> Front | None:
        """The front, connected and open; None when a signal came first."""
        loading = asyncio.create_task(self._start(children, detokenizer), name="loading")
        stop = asyncio.create_task(self._signals.first.wait(), name="stop")
        await asyncio.wait({loading, stop}, return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()
        if loading.done():
            return loading.result()
        loading.cancel()
        return None

    async def _start(self, children: Children, detokenizer: Child) -> Front:
        self._progress.show(f"Loading {self._section.files.name}")
        # Imported while the children load: it takes as long as they do for a small model.
        from .front import Front

        tokenizer, runner = await asyncio.gather(self._tokenizer(detokenizer), children.ready)
        front = Front(self._config, self._section.files, tokenizer, runner, self._section.addresses)
        await front.start()
        self._gate.open(front.app)
        self._progress.clear()
        self._announce(runner)
        return front

    async def _tokenizer(self, detokenizer: Child) -> TextTokenizer:
        """The tokenizer; its vocabulary goes to the detokenizer. Off the loop: both take a while."""
        tokenizer = await asyncio.to_thread(load_tokenizer, self._section.files)
        section = DetokenizerSection(tokenizer.vocabulary, self._config.log, self._section.addresses)
        await asyncio.to_thread(detokenizer.send, section)
        return tokenizer

    async def _serve(self, front: Front, children: Children, http: asyncio.Task[None]) -> int:
        stop = asyncio.create_task(self._signals.first.wait(), name="stop")
        either: set[asyncio.Future[Any]] = {stop, children.ended, http}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()
        if http.done():
            return 1  # nothing but a bug ends it before it is told to; awaiting it raises the error
        if not children.ended.done():
            await self._drain(front, children)
        if not children.ended.done():
            return 0
        child = children.ended.result()
        log.error("%s", child.how_it_ended())
        front.child_died(child.title)
        return 1

    async def _drain(self, front: Front, children: Children) -> None:
        """Let running answers end; what is left after the timeout, or after a second signal, is aborted."""
        front.start_draining()
        timeout_s = self._config.server.shutdown_timeout
        log.info("stopping: %d open requests have %.0f s to end", front.num_open, timeout_s)
        deadline = time.monotonic() + timeout_s
        hurry = asyncio.create_task(self._signals.second.wait(), name="hurry")
        either: set[asyncio.Future[Any]] = {hurry, children.ended}
        while front.num_open and not any(future.done() for future in either) and time.monotonic() < deadline:
            await asyncio.wait(either, timeout=DRAIN_LOOK_S, return_when=asyncio.FIRST_COMPLETED)
        hurry.cancel()
        if front.num_open and not children.ended.done():
            log.warning("%d requests did not end in time and are aborted", front.num_open)
            front.abort_all("The server is shutting down.")

    def _announce(self, runner: RunnerInfo) -> None:
        log.info(
            "KV pool: %d tokens in pages of %d (%.0f MiB), context %d, %s on %s, %s attention",
            runner.num_pages * runner.page_size,
            runner.page_size,
            runner.pool_bytes / 2**20,
            runner.context_length,
            runner.dtype,
            runner.device,
            runner.attention or "no",
        )
        url = url_of(self._listener)
        name = self._config.server.served_model_name or self._section.files.name
        body = {"model": name, "messages": [{"role": "user", "content": "What is a tide?"}], "stream": True}
        print(f"ebbtide serves {name} on {url}", flush=True)
        print(
            f"Try it:  curl -N {url}/v1/chat/completions -H 'Content-Type: application/json' "
            f"-d {shlex.quote(json.dumps(body))}",
            flush=True,
        )
