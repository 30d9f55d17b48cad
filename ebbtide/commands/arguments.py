"""Defines the flags that several commands share, and argparse types for numbers with bounds."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any


def positive_int(text: str) -> int:
    """Parse an integer of at least 1."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is less than 1")
    return value


def number(description: str, accepts: Callable[[float], bool]) -> Callable[[str], float]:
    """Return an argparse type for numbers that ``accepts``. description: noun phrase for the error message."""

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


def add_server(group: argparse._ActionsContainer) -> None:
    """Add the flags that name the server, the model and the API key."""
    group.add_argument(
        "--base-url", default="http://127.0.0.1:8000/v1", metavar="URL", help="base URL of the API, including /v1"
    )
    group.add_argument(
        "--model", default="", metavar="NAME", help="model name (default: the first that the server lists)"
    )
    group.add_argument("--api-key", metavar="KEY", help="API key, sent as a bearer token")


def add_value(
    group: argparse._ActionsContainer, flag: str, parse: Callable[[str], Any], default: str, metavar: str, text: str
) -> None:
    """Add a flag with a value. Its help text is ``text`` followed by the default. ``parse`` also parses the default."""
    group.add_argument(flag, type=parse, default=default, metavar=metavar, help=f"{text} (default: {default})")
