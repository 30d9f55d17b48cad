"""Counts the bytes of a request while it arrives, and computes its deadline.

The module does not depend on sockets or the HTTP syntax.
"""

from __future__ import annotations

from dataclasses import dataclass

MAX_HEAD_BYTES = 64 * 1024  # limit in bytes for framing: the head, chunk sizes, chunk extensions and trailers
BODY_PER_FRAMING = 32  # the limit grows by one byte per this number of body bytes, for bodies in small chunks
MIN_BYTES_PER_S = 16 * 1024  # a request whose head and body arrive at this rate never reaches the receive timeout


@dataclass(slots=True)
class ArrivingRequest:
    """The request that is being received, or the next one that is expected.

    The HTTP parser does not report at which position of its input a request begins. Bytes are therefore counted per
    piece, that is, per block of bytes read from the socket. In the piece in which a request begins, only its head
    counts as framing.

    Attributes:
        started_s: time at which the first byte arrived or, before that, at which the server began to wait for it
        has_begun: True if the first byte has arrived
        has_head: True if the head is complete
        is_complete: True if the last byte has arrived
    """

    started_s: float
    has_begun: bool = False
    has_head: bool = False
    is_complete: bool = False
    _begun_in_piece: bool = False
    _body_in_piece: int = 0
    _head_bytes: int = 0
    _body_bytes: int = 0
    _other_bytes: int = 0

    def begin_piece(self) -> None:
        """Start counting the next piece of input."""
        self._begun_in_piece, self._body_in_piece = False, 0

    def begin(self) -> None:
        """Record that the request begins somewhere in the current piece."""
        self.has_begun = self._begun_in_piece = True

    def end_head(self, num_bytes: int) -> None:
        """Record that the head, which has ``num_bytes`` bytes, ends in the current piece."""
        self.has_head = True
        self._head_bytes = num_bytes
        if self._begun_in_piece:
            self._other_bytes = num_bytes

    def add_body(self, num_bytes: int) -> None:
        """Record that a part of the body arrived in the current piece."""
        self._body_in_piece += num_bytes
        self._body_bytes += num_bytes

    def end_piece(self, num_bytes: int) -> None:
        """Count the current piece, which has ``num_bytes`` bytes."""
        if not self._begun_in_piece:
            self._other_bytes += num_bytes - self._body_in_piece

    @property
    def is_incomplete(self) -> bool:
        """True after the first byte of the request has arrived and before its last byte has arrived."""
        return self.has_begun and not self.is_complete

    @property
    def has_large_framing(self) -> bool:
        """True if the request has more bytes outside its body than the limit."""
        return self._other_bytes > MAX_HEAD_BYTES + self._body_bytes // BODY_PER_FRAMING

    def deadline_s(self, timeout_s: float) -> float:
        """Return the time at which the request must be complete.

        Bytes of head and body extend the timeout; other bytes do not.
        """
        head_bytes = self._head_bytes if self.has_head else self._other_bytes * self.has_begun
        return self.started_s + timeout_s + (head_bytes + self._body_bytes) / MIN_BYTES_PER_S
