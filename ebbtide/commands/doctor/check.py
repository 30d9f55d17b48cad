"""The result of one check."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Status = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, slots=True)
class Check:
    """The result of a check.

    Attributes:
        topic: the checked property.
        status: fail: a server does not start or does not work; warn: it works with a limitation.
        found: one sentence or the value that was found.
        remedy: a command or a flag that removes the problem; "" if there is no problem.
    """

    topic: str
    status: Status
    found: str
    remedy: str = ""
