"""The configuration that each child process receives when it starts."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..tokenization.model_files import ModelFiles
from ..tokenization.vocabulary import Vocabulary
from .engine import EncoderConfig, RunnerConfig, SchedulerConfig
from .serve import LogConfig, WatchdogConfig


@dataclass(frozen=True, slots=True)
class Addresses:
    """ZMQ addresses of one daemon. Each process binds its own address and connects to those of other processes.

    The address of a process that this daemon does not have is "".
    """

    front: str
    scheduler: str
    detokenizer: str
    encoder: str = ""


@dataclass(frozen=True, slots=True)
class Ranks:
    """The tensor-parallel ranks of one engine. The scheduler process is rank 0.

    Attributes:
        rendezvous: path of a file through which the ranks find each other.
        addresses: ZMQ addresses of the ranks 1, 2, …
        timeout_s: limit for the connection of the ranks and for each operation between them, in seconds.
    """

    rendezvous: str
    addresses: tuple[str, ...]
    timeout_s: float

    @property
    def size(self) -> int:
        """The number of ranks."""
        return len(self.addresses) + 1


@dataclass(frozen=True, slots=True)
class SchedulerSection:
    """The configuration of the scheduler process, sent to the new process once, before it loads the model.

    Attributes:
        dump_path: path of the file for its dumps.
        records_phases: True to send ``PhaseChanges``, because requests are traced.
        ranks: None without tensor parallelism.
    """

    files: ModelFiles
    scheduler: SchedulerConfig
    runner: RunnerConfig
    log: LogConfig
    addresses: Addresses
    watchdog: WatchdogConfig = field(default_factory=WatchdogConfig)
    dump_path: str = ""
    records_phases: bool = False
    ranks: Ranks | None = None


@dataclass(frozen=True, slots=True)
class RankSection:
    """The configuration of a tensor-parallel rank other than 0, sent once before it starts. rank: its number."""

    files: ModelFiles
    runner: RunnerConfig
    log: LogConfig
    ranks: Ranks
    rank: int


@dataclass(frozen=True, slots=True)
class DetokenizerSection:
    """The configuration of the detokenizer process, sent to the new process once, before its loop starts."""

    vocabulary: Vocabulary
    log: LogConfig
    addresses: Addresses


@dataclass(frozen=True, slots=True)
class EncoderSection:
    """The configuration of the encoder process, sent to the new process once, before it loads the model.

    Attributes:
        max_queued: limit on waiting inputs; None for no limit.
    """

    files: ModelFiles
    encoder: EncoderConfig
    log: LogConfig
    addresses: Addresses
    max_queued: int | None = None
