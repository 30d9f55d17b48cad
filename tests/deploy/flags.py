"""Parses words as ``ebbtide serve`` parses its command line."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from ebbtide.config import (
    AccessConfig,
    LimitsConfig,
    LogConfig,
    RunnerConfig,
    SchedulerConfig,
    ServerConfig,
    WatchdogConfig,
)
from ebbtide.server.flags import add_flags, section_from

SECTIONS = (ServerConfig, AccessConfig, LimitsConfig, RunnerConfig, SchedulerConfig, WatchdogConfig, LogConfig)


def parsed(words: Sequence[str]) -> argparse.Namespace:
    """The values of the flags and of MODEL. Fails if the daemon would refuse an argument."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("model", nargs="?")
    for section in SECTIONS:
        add_flags(parser, section)
    values = parser.parse_args(words)
    for section in SECTIONS:
        section_from(values, section)
    return values
