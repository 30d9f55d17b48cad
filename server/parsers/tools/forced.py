"""Answers that a grammar forced to be calls: no family's marks, only JSON."""

from __future__ import annotations

from collections.abc import Collection

from .marked_calls import arguments_object, call_list
from .stream_scanner import Scan, Steps


def only_calls(scan: Scan, names: Collection[str]) -> Steps[None]:
    """``[{"name": …, "arguments": {…}}, …]``. What else there is stays text."""
    yield from scan.spaces()
    scan.mark()
    yield from call_list(scan, names)
    scan.reject()


def one_call(scan: Scan, name: str) -> Steps[None]:
    """The arguments of a call of ``name`` and nothing else. What else there is stays text."""
    yield from scan.spaces()
    scan.mark()
    if (yield from scan.peek()) == "{":
        yield from arguments_object(scan, name, "")
    scan.reject()
