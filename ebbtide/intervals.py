"""Numbers on the command line: intervals such as "(0, 1]", and the largest numbers that are useful."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TypeVar

N = TypeVar("N", int, float)

# A year in seconds: system calls refuse much longer timeouts.
SECONDS = "31536000"
# The largest integer of 32 bits, for counts without a narrower bound.
COUNT = "2147483647"


def is_within(value: float, interval: str) -> bool:
    """Return True if a number lies in an interval. False for NaN."""
    low, high = (float(bound) for bound in interval[1:-1].split(","))
    above = value > low if interval[0] == "(" else value >= low
    below = value < high if interval[-1] == ")" else value <= high
    return above and below


def integer_in(interval: str) -> Callable[[str], int]:
    """Return an argparse type for the integers in an interval such as "[1, 8]"."""
    return _number_in(int, "an integer", interval)


def number_in(interval: str) -> Callable[[str], float]:
    """Return an argparse type for the numbers in an interval such as "(0, 1]"."""
    return _number_in(float, "a number", interval)


def _number_in(kind: Callable[[str], N], name: str, interval: str) -> Callable[[str], N]:
    def parse(text: str) -> N:
        try:
            value = kind(text)
        except ValueError:
            value = None
        if value is None or not is_within(value, interval):
            raise argparse.ArgumentTypeError(f"must be {name} in {interval}, not {text[:50]!r}")
        return value

    return parse
