"""Argparse types for numbers with bounds, shared by the commands."""

from __future__ import annotations

import argparse
from collections.abc import Callable


def positive_int(text: str) -> int:
    """Parse an integer of at least 1."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is less than 1")
    return value


def number(description: str, accepts: Callable[[float], bool]) -> Callable[[str], float]:
    """Return an argparse type for a number that ``accepts`` returns True for."""

    def parse(text: str) -> float:
        value = float(text)
        if not accepts(value):
            raise argparse.ArgumentTypeError(f"{text} is not {description}")
        return value

    return parse


INFINITY = float("inf")
positive_float = number("a finite number above 0", lambda value: 0 < value < INFINITY)
non_negative_float = number("a finite number of at least 0", lambda value: 0 <= value < INFINITY)
fraction = number("between 0 and 1", lambda value: 0 <= value <= 1)
fraction_below_1 = number("in [0, 1)", lambda value: 0 <= value < 1)
