"""Shared by the scripts: the address of the daemon and the expected answers."""

from __future__ import annotations

import json
import os
from typing import Any

ROOT: str = os.environ["EBBTIDE_URL"]
V1 = f"{ROOT}/v1"
MODEL = "sim"

EXPECTED: dict[str, Any] = json.loads(os.environ["EBBTIDE_EXPECTED"])
HELLO: str = EXPECTED["hello"]
CITY: dict[str, Any] = EXPECTED["city"]
RESULT: str = EXPECTED["result"]
WEATHER: str = EXPECTED["weather"]

ASK_HELLO = "Say hello."
ASK_WEATHER = "What is the weather in Zürich?"
ASK_FORM = "Fill in the form."

calls: list[dict[str, Any]] = []  # the arguments of each call of get_weather


def get_weather(city: str, days: int) -> str:
    """Look up the weather."""
    calls.append({"city": city, "days": days})
    return RESULT


def check(found: Any, expected: Any) -> None:
    """Raise AssertionError unless the two are equal."""
    assert found == expected, f"{found!r} instead of {expected!r}"
