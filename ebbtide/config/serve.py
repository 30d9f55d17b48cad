"""The whole configuration of a daemon, and its sections that concern every process."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from .engine import EncoderConfig, RunnerConfig, SchedulerConfig
from .front import AccessConfig, LimitsConfig, ServerConfig, TracingConfig
from .options import option


@dataclass(frozen=True, slots=True)
class WatchdogConfig:
    """Watchdog and supervision."""

    watchdog_timeout: float = option(
        300.0,
        "seconds with work but no progress after which the engine dumps its state and exits",
        metavar="S",
        within="(0, 31536000]",
    )
    soft_watchdog_timeout: float | None = option(
        None,
        "seconds with work but no progress after which the engine dumps its state",
        metavar="S",
        within="(0, 31536000]",
    )
    heartbeat_timeout: float = option(
        20.0,
        "seconds without a process's heartbeat after which /ready returns 503",
        metavar="S",
        within="(0, 31536000]",
    )
    progress_alarm: float = option(
        30.0,
        "seconds with waiting requests and no admission after which the reason is logged",
        metavar="S",
        within="(0, 31536000]",
    )
    load_timeout: float = option(
        1800.0, "time limit for loading and compiling, in seconds", metavar="S", within="(0, 31536000]"
    )
    restart_on_failure: int = option(
        0, "limit on engine restarts after a failure; HTTP stays up meanwhile", metavar="N", within="[0, 2147483647]"
    )


@dataclass(frozen=True, slots=True)
class LogConfig:
    """Logging, the same in every process."""

    log_level: Literal["debug", "info", "warning", "error"] = option("info", "lowest severity that is logged")
    log_format: Literal["text", "json"] = option(
        "text", "format of the log: one line of text or one JSON object per event"
    )
    log_interval: float = option(
        10.0,
        "seconds between two log lines about the load while requests are running or waiting; 0 disables them",
        metavar="S",
        within="[0, 31536000]",
    )
    log_requests: bool = option(
        False, "log one line at the end of each request: ids, tokens, times, retractions, status; never its text"
    )


@dataclass(frozen=True, slots=True)
class ServeConfig:
    """The whole configuration of ``ebbtide serve``.

    Attributes:
        model: the argument MODEL; "" if there is only an embedding model.
    """

    model: str = "smollm2"
    server: ServerConfig = field(default_factory=ServerConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    runner: RunnerConfig = field(default_factory=RunnerConfig)
    log: LogConfig = field(default_factory=LogConfig)
    watchdog: WatchdogConfig = field(default_factory=WatchdogConfig)
    access: AccessConfig = field(default_factory=AccessConfig)
    limits: LimitsConfig = field(default_factory=LimitsConfig)
    encoder: EncoderConfig = field(default_factory=EncoderConfig)
    tracing: TracingConfig = field(default_factory=TracingConfig)
