"""Where tokens begin in a text, when tokens are bytes and places are counted in characters."""

from __future__ import annotations

import codecs


class TokenOffsets:
    """Counts on from token to token; ``start`` is the place of the first one."""

    def __init__(self, start: int = 0) -> None:
        self._length = start
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def next(self, raw: bytes) -> int:
        """The place of a token with these bytes: that of the character which its first byte belongs to."""
        if raw and not continues(raw):
            self._length += len(self._decoder.decode(b"", final=True))  # what it does not complete is broken
        place = self._length
        self._length += len(self._decoder.decode(raw))
        return place

    def half(self, raw: bytes) -> None:
        """Take the beginning of a character that the next token completes."""
        self._decoder.decode(raw)


def continues(raw: bytes) -> bool:
    """Whether these bytes begin in the middle of a character."""
    return 0x80 <= raw[0] < 0xC0
