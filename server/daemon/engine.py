"""Starts, configures and stops the engine processes: scheduler and detokenizer.

No other file names the modules that the processes run.
"""

from __future__ import annotations

from pathlib import Path

from ebbtide.config import Addresses, DetokenizerSection, SchedulerSection, ServeConfig
from ebbtide.runtime.child import Child, stop_children
from ebbtide.runtime.socket_directory import addresses_in
from ebbtide.tokenization.model_files import ModelFiles
from ebbtide.tokenization.vocabulary import Vocabulary

SCHEDULER = "ebbtide.scheduler.process"
DETOKENIZER = "ebbtide.detokenizer.process"
GRACE_S = 5.0


class Engine:
    """The engine processes. The context manager starts the processes on entry and stops them on exit.

    Enter it and call ``restart`` on the main thread: the kernel ends children together with the thread that started
    them. On entry the processes only import their modules, until ``load``.

    Attributes:
        files: the model of ``load``.
    """

    files: ModelFiles

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

        They are never reused, so that no stale message reaches a new process.
        """
        return addresses_in(self._directory, self._incarnation)

    def restart(self) -> None:
        """Start new processes and load the model again. The earlier processes must have ended."""
        self._spawn()
        self.load(self.files)

    def load(self, files: ModelFiles) -> None:
        """Let the scheduler load the model. The detokenizer waits for ``send_vocabulary``."""
        self.files = files
        config = self._config
        self.children[0].send(
            SchedulerSection(
                files,
                config.scheduler,
                config.runner,
                config.log,
                self.addresses,
                config.watchdog,
                str(self.dump_path("scheduler")),
            )
        )

    def _spawn(self) -> None:
        self._incarnation += 1
        self.children = []
        self.children.append(Child(SCHEDULER, "scheduler"))
        self.children.append(Child(DETOKENIZER, "detokenizer"))

    def send_vocabulary(self, vocabulary: Vocabulary) -> None:
        """Send the detokenizer its configuration. The call blocks until the detokenizer has read the configuration."""
        self.children[1].send(DetokenizerSection(vocabulary, self._config.log, self.addresses))

    def child(self, title: str) -> Child:
        """Return the process named ``title``."""
        return next(child for child in self.children if child.title == title)

    def dump_path(self, name: str) -> Path:
        """Return the file to which process ``name`` writes its last dump."""
        return self._directory / f"{name}.dump"

    def request_dumps(self) -> None:
        """Ask both processes to write a dump."""
        for child in self.children:
            child.request_dump()

    def stop(self) -> None:
        """End the processes and remove their sockets. May be repeated."""
        stop_children(self.children, GRACE_S)
        if self._incarnation >= 0:
            for name in ("front", "scheduler", "detokenizer"):
                Path(getattr(self.addresses, name).removeprefix("ipc://")).unlink(missing_ok=True)
