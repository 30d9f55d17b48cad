"""The base classes of all messages."""

from __future__ import annotations

import msgspec


class Message(msgspec.Struct, frozen=True, array_like=True, tag=True, gc=False):
    """Base of the tagged messages."""


class Part(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Base of the untagged parts of messages."""


Finish = str  # "stop" | "length" | "abort"; the HTTP layer maps them to each API's values
