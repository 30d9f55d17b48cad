"""The configuration: frozen, built once by the CLI, one section per process. The CLI's flags are derived from it."""

from .engine import FLASH_PAGE_SIZE, PAGE_SIZE, EncoderConfig, RunnerConfig, SchedulerConfig
from .front import AccessConfig, LimitsConfig, ServerConfig, TracingConfig
from .processes import Addresses, DetokenizerSection, EncoderSection, Ranks, RankSection, SchedulerSection
from .serve import LogConfig, ServeConfig, WatchdogConfig

__all__ = [
    "FLASH_PAGE_SIZE",
    "PAGE_SIZE",
    "AccessConfig",
    "Addresses",
    "DetokenizerSection",
    "EncoderConfig",
    "EncoderSection",
    "LimitsConfig",
    "LogConfig",
    "RankSection",
    "Ranks",
    "RunnerConfig",
    "SchedulerConfig",
    "SchedulerSection",
    "ServeConfig",
    "ServerConfig",
    "TracingConfig",
    "WatchdogConfig",
]
