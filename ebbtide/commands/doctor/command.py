"""``ebbtide doctor``: prints one line per check, and for a problem a command that removes it."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from .check import Check
from .machine import check_gpu, check_instruction_set, check_memory
from .places import check_folders, check_port
from .software import check_compiler, check_kernels, check_versions


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """``ebbtide doctor`` has no flags."""


def run(arguments: argparse.Namespace) -> int:
    """Run all checks and print their results. Returns 1 if a check has failed, else 0."""
    return report(_checks())


def report(checks: Iterator[Check]) -> int:
    """Print each result as soon as its check is done. Returns 1 if a check has failed, else 0."""
    failed = False
    for check in checks:
        print(f"{check.status:<4}  {check.topic:<15}  {check.found}", flush=True)
        if check.remedy:
            print(f"{'':<23}→ {check.remedy}", flush=True)
        failed |= check.status == "fail"
    return 1 if failed else 0


def _checks() -> Iterator[Check]:
    yield check_versions()
    yield check_compiler()
    yield check_kernels()
    yield check_instruction_set()
    yield check_memory()
    yield check_port()
    yield from check_folders()
    yield check_gpu()
