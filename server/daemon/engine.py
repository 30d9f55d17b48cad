"""Starts, configures and stops the engine processes: the scheduler, the detokenizer, the encoder and the other
tensor-parallel ranks, as configured.

No other file names the modules that the processes run.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import astuple, replace
from pathlib import Path

from ebbtide.config import (
    Addresses,
    DetokenizerSection,
    EncoderSection,
    Ranks,
    RankSection,
    SchedulerSection,
    ServeConfig,
)
from ebbtide.runtime.child import Child, stop_children
from ebbtide.runtime.daemon_record import DaemonRecord, write_record
from ebbtide.runtime.socket_directory import addresses_in, ranks_in
from ebbtide.tokenization.model_files import ModelFiles
from ebbtide.tokenization.vocabulary import Vocabulary

SCHEDULER = "ebbtide.scheduler.process"
DETOKENIZER = "ebbtide.detokenizer.process"
ENCODER = "ebbtide.model_runner.encoder.process"
RANK = "ebbtide.model_runner.tensor_parallel.process"
GRACE_S = 5.0


class Engine:
    """The engine processes. As a context manager, it starts the processes on entry and stops them on exit.

    Enter it and call ``restart`` on the main thread, because the kernel ends child processes together with the thread
    that started them. Started processes only import their modules; ``load`` makes them load the models.

    Attributes:
        files: the chat model that was passed to ``load``; None if there is none.
        encoder_files: the embedding model that was passed to ``load``; None if there is none.
    """

    files: ModelFiles | None
    encoder_files: ModelFiles | None

    def __init__(self, config: ServeConfig, directory: Path) -> None:
        self._config = config
        self._directory = directory
        self._incarnation = -1
        self.children: list[Child] = []

    def __enter__(self) -> Engine:
        try:
            self._spawn()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def addresses(self) -> Addresses:
        """The addresses of the current processes.

        Addresses are never reused, so that no stale message reaches a new process.
        """
        found = addresses_in(self._directory, self._incarnation)
        if not self._config.model:
            found = replace(found, scheduler="", detokenizer="")
        return found if self._config.encoder.embedding_model else replace(found, encoder="")

    def restart(self) -> None:
        """Start new processes and load the models again. The earlier processes must have ended."""
        self._spawn()
        self.load(self.files, self.encoder_files)

    def load(self, files: ModelFiles | None, encoder_files: ModelFiles | None = None) -> None:
        """Make the scheduler and the encoder load their models. The detokenizer waits for ``send_vocabulary``."""
        self.files = files
        self.encoder_files = encoder_files
        config = self._config
        if encoder_files is not None:
            limit = config.scheduler.max_queued_requests
            self.child("encoder").send(EncoderSection(encoder_files, config.encoder, config.log, self.addresses, limit))
        if files is None:
            return
        ranks = self._ranks()
        if ranks is not None:
            for rank in range(1, ranks.size):
                self.child(_rank_title(rank)).send(RankSection(files, config.runner, config.log, ranks, rank))
        self.child("scheduler").send(
            SchedulerSection(
                files,
                config.scheduler,
                config.runner,
                config.log,
                self.addresses,
                config.watchdog,
                str(self.dump_path("scheduler")),
                records_phases=config.tracing.otlp_endpoint is not None,
                ranks=ranks,
            )
        )

    def _spawn(self) -> None:
        self._incarnation += 1
        self.children = []
        if self._config.model:
            self.children.append(Child(SCHEDULER, "scheduler"))
            self.children.append(Child(DETOKENIZER, "detokenizer"))
            self.children += [Child(RANK, _rank_title(rank)) for rank in range(1, self._config.runner.tp)]
        if self._config.encoder.embedding_model:
            self.children.append(Child(ENCODER, "encoder"))

    def send_vocabulary(self, vocabulary: Vocabulary) -> None:
        """Send the vocabulary and the configuration to the detokenizer. Blocks until the detokenizer has read them."""
        self.child("detokenizer").send(DetokenizerSection(vocabulary, self._config.log, self.addresses))

    def publish(self, url: str, names: Sequence[str]) -> None:
        """Write a record with which the same user's commands find the daemon. It is removed with the directory.

        url: the URL of the daemon.
        names: the names of the models in the API.
        """
        config, files = self._config, self.files or self.encoder_files
        assert files is not None
        record = DaemonRecord(
            pid=os.getpid(),
            url=url,
            model=config.model or config.encoder.embedding_model or "",
            names=tuple(names),
            directory=files.directory,
            gguf=files.gguf,
            started=time.time(),
            needs_key=bool(config.access.api_key),
        )
        write_record(self._directory, record)

    def child(self, title: str) -> Child:
        """Return the process named ``title``."""
        return next(child for child in self.children if child.title == title)

    def dump_path(self, name: str) -> Path:
        """Return the file to which process ``name`` writes its last dump."""
        return self._directory / f"{name}.dump"

    def request_dumps(self) -> None:
        """Ask all processes to write a dump."""
        for child in self.children:
            child.request_dump()

    def stop(self) -> None:
        """Stop the processes and remove their sockets. Further calls have no effect."""
        stop_children(self.children, GRACE_S)
        if self._incarnation >= 0:
            ranks = self._ranks()
            further = (*ranks.addresses, ranks.rendezvous) if ranks is not None else ()
            for address in filter(None, (*astuple(self.addresses), *further)):
                Path(address.removeprefix("ipc://")).unlink(missing_ok=True)

    def _ranks(self) -> Ranks | None:
        """The tensor-parallel ranks of the current processes; None without tensor parallelism."""
        size = self._config.runner.tp
        if size == 1:
            return None
        return ranks_in(self._directory, size, self._incarnation, self._config.watchdog.load_timeout)


def _rank_title(rank: int) -> str:
    return f"rank-{rank}"
