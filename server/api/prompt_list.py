"""Reads a field that contains one prompt or several, as strings or token ids."""

from __future__ import annotations

from typing import Any

from ebbtide.errors import Rejected


def listed(value: str | list[Any], param: str) -> list[str | list[Any]]:
    """Return the prompts in the field ``param``. Each is a string, or a list whose entries are not checked yet.

    Raises Rejected if the list or one of its entries is empty or has another type.
    """
    is_single = isinstance(value, str) or (bool(value) and all(type(entry) is int for entry in value))
    prompts: list[str | list[Any]] = [value] if is_single else list(value)
    if {type(entry) for entry in prompts} not in ({str}, {list}):
        raise Rejected(
            f"'{param}' must be a string, a list of strings, a list of token ids, or a list of such lists.", param=param
        )
    if not all(prompts):
        raise Rejected(f"'{param}' is empty or has an empty entry.", param=param)
    return prompts
