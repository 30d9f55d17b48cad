"""The base classes of all messages."""

from __future__ import annotations

import msgspec


class Message(msgspec.Struct, frozen=True, array_like=True, tag=True, gc=False):
    """The base class of all messages. Their encoding includes a type tag."""


class Part(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The base class of the parts of messages. Their encoding has no type tag."""


Finish = str  # "stop" | "length" | "abort"; the HTTP layer maps them to each API's values
