"""The result of one check."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Status = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, slots=True)
class Check:
    """The result of a check.

    Attributes:
        topic: name of the checked property.
        status: "fail" if a server does not start or does not work, "warn" if it works with a limitation, else "ok".
        found: description of what was found.
        remedy: a command or another action that removes the problem; "" if there is none.
    """

    topic: str
    status: Status
    found: str
    remedy: str = ""
