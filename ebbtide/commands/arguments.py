"""Defines the flags that several commands share, and their types."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from ..intervals import COUNT, SECONDS, integer_in, number_in

count = integer_in(f"[1, {COUNT}]")
count_or_0 = integer_in(f"[0, {COUNT}]")
seconds = number_in(f"(0, {SECONDS}]")
temperature = number_in("[0, 100]")
seed = integer_in("[-9007199254740992, 9007199254740992]")  # a float represents these integers exactly
fraction = number_in("[0, 1]")


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
