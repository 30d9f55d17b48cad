"""The inputs that wait for the encoder, and the selection of a batch. The module uses no clock and no model."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice

WINDOW = 4096  # number of oldest inputs from which a batch is chosen


@dataclass(frozen=True, slots=True)
class WaitingInput:
    """One text, text pair or list of token ids that waits.

    Attributes:
        value: the input. Inputs of different types are not computed together.
        num_tokens: number of tokens, including special tokens.
        deadline_s: time at which the input is aborted; None for no limit.
    """

    rid: str
    value: str | tuple[str, str] | list[int]
    num_tokens: int
    deadline_s: float | None = None


class EncoderQueue:
    """The waiting inputs, in order of arrival."""

    def __init__(self, max_batch_tokens: int, limit: int | None = None) -> None:
        """max_batch_tokens: maximum number of tokens of a batch, including padding. A single input may exceed it.

        limit: maximum number of waiting inputs; None for no limit.
        """
        self._max_tokens = max_batch_tokens
        self.limit = limit
        self._waiting: dict[str, WaitingInput] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def has_room(self, rid: str) -> bool:
        """True if an input may be added: the limit is not reached, or no other HTTP request has the oldest input.

        A request with more inputs than the limit is accepted if none waits, because a retry would not help.
        """
        if self.limit is None or len(self._waiting) < self.limit:
            return True
        return _request_of(next(iter(self._waiting))) == _request_of(rid)

    def add(self, one: WaitingInput) -> None:
        """Append an input."""
        self._waiting[one.rid] = one

    def remove(self, rid: str) -> None:
        """Remove an input. Does nothing if it is not waiting."""
        self._waiting.pop(rid, None)

    def pop_expired(self, now: float) -> list[WaitingInput]:
        """Remove and return the inputs whose deadline has passed."""
        late = [one for one in self._waiting.values() if one.deadline_s is not None and one.deadline_s <= now]
        for one in late:
            del self._waiting[one.rid]
        return late

    def pop_batch(self) -> list[WaitingInput]:
        """Remove and return the inputs to compute next; [] if no input is waiting.

        The batch contains the oldest input, so that no input waits forever, and the inputs that are closest to it in
        length, so that little padding is needed.
        """
        oldest = next(iter(self._waiting.values()), None)
        if oldest is None:
            return []
        kind = type(oldest.value)
        similar = [one for one in islice(self._waiting.values(), WINDOW) if type(one.value) is kind]
        similar.sort(key=lambda one: abs(one.num_tokens - oldest.num_tokens))  # stable: the oldest stays first
        batch: list[WaitingInput] = []
        longest = 0
        for one in similar:
            longest = max(longest, one.num_tokens)
            if batch and longest * (len(batch) + 1) > self._max_tokens:
                break
            batch.append(one)
        for one in batch:
            del self._waiting[one.rid]
        return batch


def _request_of(rid: str) -> str:
    """Return the part of an id that the inputs of one HTTP request share."""
    return rid.rpartition("-")[0]
