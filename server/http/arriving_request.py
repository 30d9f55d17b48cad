"""Counts the bytes of a request while it arrives, and computes its deadline. Knows no sockets and no HTTP syntax."""

from __future__ import annotations

from dataclasses import dataclass

MAX_HEAD_BYTES = 64 * 1024  # of everything that is not body: head, chunk sizes, chunk extensions, trailers
BODY_PER_FRAMING = 32  # one more byte of framing is allowed per this many bytes of body, for bodies in small chunks
MIN_BYTES_PER_S = 16 * 1024  # a request whose head and body arrive at this rate is exempt from the receive timeout


@dataclass(slots=True)
class ArrivingRequest:
    """The request that is being received, or that is awaited.

    The parser does not tell where in its input a request begins. The input is therefore counted by pieces, and what
    precedes and follows the head within one piece is not counted as framing.

    Attributes:
        started_s: when its first byte arrived, or when it was first awaited
        has_begun: its first byte has arrived
        has_head: its head is complete
        is_complete: its last byte has arrived
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
        """Start to count the next piece of input."""
        self._begun_in_piece, self._body_in_piece = False, 0

    def begin(self) -> None:
        """Record that the request begins somewhere in the current piece."""
        self.has_begun = self._begun_in_piece = True

    def end_head(self, num_bytes: int) -> None:
        """Record that the head, of ``num_bytes``, ends in the current piece."""
        self.has_head = True
        self._head_bytes = num_bytes
        if self._begun_in_piece:
            self._other_bytes = num_bytes

    def add_body(self, num_bytes: int) -> None:
        """Record that a part of the body arrived in the current piece."""
        self._body_in_piece += num_bytes
        self._body_bytes += num_bytes

    def end_piece(self, num_bytes: int) -> None:
        """Count the current piece, of ``num_bytes``."""
        if not self._begun_in_piece:
            self._other_bytes += num_bytes - self._body_in_piece

    @property
    def is_incomplete(self) -> bool:
        """True from its first byte to its last."""
        return self.has_begun and not self.is_complete

    @property
    def has_large_framing(self) -> bool:
        """True if it has more bytes outside its body than are allowed."""
        return self._other_bytes > MAX_HEAD_BYTES + self._body_bytes // BODY_PER_FRAMING

    def deadline_s(self, timeout_s: float) -> float:
        """Return when it must be complete. Bytes of head and body extend the timeout; others do not."""
        head_bytes = self._head_bytes if self.has_head else self._other_bytes * self.has_begun
        return self.started_s + timeout_s + (head_bytes + self._body_bytes) / MIN_BYTES_PER_S
