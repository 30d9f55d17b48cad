"""Reads the inputs of a request: one or several strings, or lists of token ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ebbtide.errors import Rejected

from ..prompt_list import listed
from .pooling_model import Input

MAX_INPUTS = 2048  # OpenAI's limit


def inputs_of(value: str | list[Any], param: str) -> list[Input]:
    """Return the inputs in the field ``param``, each a string or a list of token ids.

    Raises Rejected if there are no inputs or too many, or if an input is empty.
    """
    inputs = listed(value, param)
    check_count(len(inputs), param)
    return inputs


def texts_of(value: str | Sequence[Any], param: str) -> list[str]:
    """Return the strings in the field ``param``: a string, or a list of strings or of objects with a field ``text``.

    Raises Rejected if there are no strings or too many, or if one is empty.
    """
    entries: Sequence[Any] = [value] if isinstance(value, str) else value
    check_count(len(entries), param)
    return [_text_of(entry, param) for entry in entries]


def check_count(count: int, param: str) -> None:
    """Raise Rejected if ``count`` is 0 or exceeds ``MAX_INPUTS``."""
    if not count:
        raise Rejected(f"'{param}' is empty.", param=param)
    if count > MAX_INPUTS:
        raise Rejected(f"'{param}' has {count} entries; at most {MAX_INPUTS} are allowed.", param=param)


def _text_of(entry: Any, param: str) -> str:
    text = entry.get("text") if isinstance(entry, dict) else entry
    if not isinstance(text, str):
        raise Rejected(
            f"Each entry of '{param}' must be a string, or an object with a string field 'text'.", param=param
        )
    if not text:
        raise Rejected(f"'{param}' contains an empty string.", param=param)
    return text
