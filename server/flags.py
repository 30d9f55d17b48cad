"""Derives command-line flags from the fields of the configuration.

The module does not depend on the names of the fields.
"""

from __future__ import annotations

import argparse
import types
from collections.abc import Iterator
from dataclasses import MISSING, Field, fields
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from ebbtide.errors import UsageError
from ebbtide.intervals import is_within

C = TypeVar("C")

METAVARS = {int: "N", float: "X", str: "TEXT"}


def add_flags(parser: argparse.ArgumentParser, section: type[Any]) -> None:
    """Add the flags for a section of the configuration, as a group whose title is the first line of its docstring."""
    group = parser.add_argument_group((section.__doc__ or section.__name__).partition("\n")[0].rstrip("."))
    for flag, name, field, kind in _flags(section):
        group.add_argument(flag, dest=name, **_argument(field, kind))


def section_from(arguments: argparse.Namespace, section: type[C]) -> C:
    """Build a section of the configuration from parsed flags.

    Raises UsageError if a value is outside its interval.
    """
    values = vars(arguments)
    chosen: dict[str, Any] = {}
    for flag, name, field, _ in _flags(section):
        value: Any = tuple(values[name]) if isinstance(values[name], list) else values[name]
        within = field.metadata.get("within")  # repeatable flags have no interval
        if within is not None and value is not None and not is_within(value, within):
            raise UsageError(f"{flag} must be in {within}, not {value}.")
        chosen[name] = value
    return section(**chosen)


def _flags(section: type[Any]) -> Iterator[tuple[str, str, Field[Any], Any]]:
    """Yield (flag, field name, field, type of the field without None)."""
    kinds = get_type_hints(section)
    for field in fields(section):
        flag = field.metadata["flag"] or "--" + field.name.replace("_", "-")
        yield flag, field.name, field, _without_none(kinds[field.name])


def _without_none(kind: Any) -> Any:
    if get_origin(kind) in (Union, types.UnionType):
        (kind,) = [part for part in get_args(kind) if part is not types.NoneType]
    return kind


def _argument(field: Field[Any], kind: Any) -> dict[str, Any]:
    default = field.default if field.default is not MISSING else ()
    argument: dict[str, Any] = {"default": default, "help": _help(field.metadata["help"], default)}
    if kind is bool:
        return argument | {"action": "store_true"}
    argument["metavar"] = field.metadata["metavar"] or METAVARS.get(kind)
    choices = get_args(kind) if get_origin(kind) is Literal else field.metadata.get("choices")
    if choices:
        return argument | {"choices": choices, "metavar": None}
    if get_origin(kind) is tuple:
        return argument | {"action": "append", "type": get_args(kind)[0], "default": list(default)}
    return argument | {"type": kind}


def _help(text: str, default: Any) -> str:
    text = text.replace("%", "%%")
    silent = default is None or default is False or default == () or "default" in text
    return text if silent else f"{text} (default: {default})"
