"""Computes the offset of each token in a text, in characters. A token may contain only a part of a character."""

from __future__ import annotations

import codecs


class TokenOffsets:
    """Computes the offsets of successive tokens.

    start: offset of the first token.
    """

    def __init__(self, start: int = 0) -> None:
        self._length = start
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def next(self, raw: bytes) -> int:
        """Return the offset of the next token, whose bytes are ``raw``.

        The offset is that of the character that contains the token's first byte.
        """
        if raw and not continues(raw):
            self._length += len(self._decoder.decode(b"", final=True))  # an incomplete character counts as one U+FFFD
        offset = self._length
        self._length += len(self._decoder.decode(raw))
        return offset

    def begin_character(self, raw: bytes) -> None:
        """Add the bytes of an incomplete character that the next token completes."""
        self._decoder.decode(raw)


def continues(raw: bytes) -> bool:
    """Return True if the bytes begin in the middle of a character."""
    return 0x80 <= raw[0] < 0xC0
