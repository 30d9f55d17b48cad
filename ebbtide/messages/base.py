"""The base classes of all messages."""

from __future__ import annotations

import msgspec


class Message(msgspec.Struct, frozen=True, array_like=True, tag=True, gc=False):
    """Base of the tagged messages."""


class Part(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Base of what messages are made of."""


Finish = str  # "stop" | "length" | "abort": the values that travel; the HTTP layer maps them
