"""The engine processes of a daemon, scheduler and detokenizer, one life after another: started, told, ended.

The one place outside ``ebbtide.runtime.child`` that knows which modules the processes run.
"""

from __future__ import annotations

from pathlib import Path

from ebbtide.config import Addresses, DetokenizerSection, SchedulerSection, ServeConfig
from ebbtide.runtime.child import Child, end_children
from ebbtide.runtime.socket_directory import addresses_in
from ebbtide.tokenization.model_files import ModelFiles
from ebbtide.tokenization.vocabulary import Vocabulary

SCHEDULER = "ebbtide.scheduler.process"
DETOKENIZER = "ebbtide.detokenizer.process"
GRACE_S = 5.0


class Engine:
    """Used as a context manager: leaving it ends the processes. Enter it and call ``start`` on the thread that lives
    longest: the kernel ends children together with the thread that started them.
    """

    def __init__(self, config: ServeConfig, files: ModelFiles, directory: Path) -> None:
        self._config = config
        self.files = files
        self._directory = directory
        self._incarnation = -1
        self.children: list[Child] = []

    def __enter__(self) -> Engine:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def addresses(self) -> Addresses:
        """Where this life's processes meet; no two lives share an address, so nothing old can reach the new."""
        return addresses_in(self._directory, self._incarnation)

    def start(self) -> None:
        """Begin a new life; the last one must have ended. The detokenizer waits for ``send_vocabulary``."""
        self._incarnation += 1
        self.children = []
        self.children.append(Child(SCHEDULER, "scheduler"))
        self.children.append(Child(DETOKENIZER, "detokenizer"))
        config = self._config
        self.children[0].send(
            SchedulerSection(
                self.files,
                config.scheduler,
                config.runner,
                config.log,
                self.addresses,
                config.watchdog,
                str(self.dump_path("scheduler")),
            )
        )

    def send_vocabulary(self, vocabulary: Vocabulary) -> None:
        """Let the detokenizer load; waits until it has taken its section."""
        self.children[1].send(DetokenizerSection(vocabulary, self._config.log, self.addresses))

    def child(self, title: str) -> Child:
        """The process of that name."""
        return next(child for child in self.children if child.title == title)

    def dump_path(self, name: str) -> Path:
        """The file in which process ``name`` leaves its last dump."""
        return self._directory / f"{name}.dump"

    def request_dumps(self) -> None:
        """Let both processes write what they do."""
        for child in self.children:
            child.ask_for_dump()

    def stop(self) -> None:
        """End the processes and remove their sockets. Safe to repeat."""
        end_children(self.children, GRACE_S)
        if self._incarnation >= 0:
            for name in ("front", "scheduler", "detokenizer"):
                Path(getattr(self.addresses, name).removeprefix("ipc://")).unlink(missing_ok=True)
