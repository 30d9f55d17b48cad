"""Fields of the configuration that are also command-line flags."""

from __future__ import annotations

from dataclasses import field
from typing import Any


def option(default: Any, help_text: str, *, flag: str | None = None, metavar: str | None = None, **limits: Any) -> Any:
    """A field that is also a CLI flag.

    flag: the flag's name if it is not ``--field-name``.
    limits: ``within``, an interval such as "(0, 1]", or ``choices``, all valid strings.
    """
    return field(default=default, metadata={"help": help_text, "flag": flag, "metavar": metavar, **limits})


def secret(help_text: str, *, metavar: str) -> Any:
    """A field that is also a CLI flag and is left out of the repr."""
    return field(default=None, repr=False, metadata={"help": help_text, "flag": None, "metavar": metavar})


def option_list(help_text: str, *, flag: str, metavar: str, shown: bool = True) -> Any:
    """A field that is a repeatable CLI flag. shown: if False, the repr does not contain it."""
    return field(default=(), repr=shown, metadata={"help": help_text, "flag": flag, "metavar": metavar})
