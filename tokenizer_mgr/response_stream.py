"""What one HTTP request gets back: the text of its choices as it comes, and exactly one outcome. Knows no sockets."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass, field

from ebbtide.errors import Rejected
from ebbtide.messages import PressureUsage, TextItem, TextLogprob


@dataclass(slots=True)
class Delta:
    """What is new of one choice since the reader last asked.

    num_output_tokens: total so far. finish: "stop" or "length", once; matched: the stop string or token that did it.
    prompt: log-probabilities of all prompt tokens but the first, in the first delta of a prompt's first choice.
    """

    index: int
    text: str = ""
    tokens: list[int] = field(default_factory=list)
    logprobs: list[TextLogprob] = field(default_factory=list)
    num_output_tokens: int = 0
    finish: str | None = None
    matched: str | int | None = None
    cached_tokens: int | None = None
    pressure: PressureUsage | None = None
    prompt_tokens: int | None = None
    prompt: list[TextLogprob] = field(default_factory=list)

    def add(self, item: TextItem) -> None:
        """Append an item's news."""
        self.text += item.text
        self.tokens += item.tokens
        self.logprobs += item.logprobs or []
        self.prompt += item.prompt or []
        self.num_output_tokens = item.num_output_tokens
        self.finish = self.finish or (None if item.finish == "abort" else item.finish)
        self.matched = item.matched if self.matched is None else self.matched
        self.cached_tokens = item.cached_tokens if self.cached_tokens is None else self.cached_tokens
        self.prompt_tokens = item.prompt_tokens if self.prompt_tokens is None else self.prompt_tokens
        self.pressure = item.pressure or self.pressure


class ResponseStream:
    """The reader's end of one HTTP request. Used as a context manager: leaving it early aborts what still runs.

    Unread text is joined per choice, so a slow reader costs the text itself and no queue.
    """

    def __init__(
        self, rids: list[str], received_s: float, on_close: Callable[[ResponseStream], None], owner: str = ""
    ) -> None:
        self.rids = rids
        self.owner = owner
        self.received_s = received_s
        self.deadline_s = math.inf  # on the clock of received_s; the scheduler keeps it as long as it can
        self.had_token = False
        self._on_close = on_close
        self._unread: dict[int, Delta] = {}
        self._held: dict[int, Delta] = {}
        self._num_open = len(rids)
        self._error: Rejected | None = None
        self._news = asyncio.Event()
        self._outcome = asyncio.Event()

    def __enter__(self) -> ResponseStream:
        return self

    def __exit__(self, *_: object) -> None:
        self._on_close(self)

    @property
    def done(self) -> bool:
        """Whether every choice has finished and all of it was read."""
        return not self._num_open and not self._unread and self._error is None

    @property
    def has_outcome(self) -> bool:
        """Whether the outcome is known, read or not."""
        return not self._num_open or self._error is not None

    async def next_deltas(self, timeout_s: float | None = None) -> list[Delta]:
        """What came since the last call, in choice order; waits for some. [] after ``timeout_s`` seconds of silence.

        Raises the request's error, after the text that came before it was read. Not to be called when ``done``.
        """
        try:
            async with asyncio.timeout(timeout_s):
                await self._news.wait()
        except TimeoutError:
            return []
        if not self._unread and self._error is not None:
            raise self._error
        deltas = [self._unread[index] for index in sorted(self._unread)]
        self._unread.clear()
        if self._error is None:
            self._news.clear()
        return deltas

    async def all_deltas(self) -> list[Delta]:
        """One Delta for each choice, once all have finished. Raises the request's error instead."""
        await self._outcome.wait()
        if self._error is not None:
            raise self._error
        return await self.next_deltas()

    def add(self, index: int, item: TextItem) -> bool:
        """New text of choice ``index``; True when this was the last open choice's end."""
        ends = item.finish in ("stop", "length")
        delta = self._held.pop(index, None) or self._unread.get(index) or Delta(index)
        delta.add(item)
        if not (item.tokens or item.text or ends) and index not in self._unread:
            # Nothing of the answer yet, only of the prompt: as long as this is so, a failure is an HTTP error.
            self._held[index] = delta
            return False
        self._unread[index] = delta
        self._num_open -= ends
        self._news.set()
        if not self._num_open:
            self._outcome.set()
        return not self._num_open

    def fail(self, error: Rejected) -> None:
        """The whole request ends with ``error``, unless its outcome is known already."""
        if not self.has_outcome:
            self._error = error
            self._news.set()
            self._outcome.set()
