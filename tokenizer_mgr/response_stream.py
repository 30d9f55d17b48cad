"""The output of one HTTP request: the text of its choices as it arrives, and one outcome.

The module does not depend on sockets.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass, field

from ebbtide.errors import Rejected
from ebbtide.messages import PressureUsage, TextItem, TextLogprob


@dataclass(slots=True)
class Delta:
    """The new output of one choice since the last read.

    Attributes:
        num_output_tokens: total number of output tokens of the choice so far
        finish: "stop" or "length" in the last delta of the choice
        matched: the stop string or token that ended the choice
        prompt: log-probabilities of all prompt tokens except the first, in the first delta of a prompt's first choice
        embedding: little-endian float32, if the request asked for a vector
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
    embedding: bytes = b""

    def add(self, item: TextItem) -> None:
        """Append the output of ``item``."""
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
        self.embedding = item.embedding or self.embedding


@dataclass(slots=True)
class StreamFacts:
    """Data about one request, for its log line. The keys of the dicts are choice indexes.

    Attributes:
        first_token_s: time of the first token, on the clock of ``received_s``; None until the first token arrives.
        num_choices: number of choices per prompt. Prompt and cached tokens are recorded only for the first choice of
            each prompt, because the other choices share the prefix that the first one has computed.
    """

    first_token_s: float | None = None
    num_choices: int = 1
    prompt_tokens: dict[int, int] = field(default_factory=dict)
    cached_tokens: dict[int, int] = field(default_factory=dict)
    output_tokens: dict[int, int] = field(default_factory=dict)
    retractions: dict[int, int] = field(default_factory=dict)
    finishes: dict[int, str] = field(default_factory=dict)

    def add(self, index: int, item: TextItem) -> None:
        """Record the totals that an item contains."""
        self.output_tokens[index] = item.num_output_tokens
        is_first = index % self.num_choices == 0
        if item.prompt_tokens and is_first:
            self.prompt_tokens[index] = item.prompt_tokens  # in a session, this includes the earlier turns
        if item.cached_tokens is not None and is_first:
            self.cached_tokens[index] = item.cached_tokens
        if item.pressure is not None:
            self.retractions[index] = item.pressure.num_retractions
        if item.finish is not None:
            self.finishes[index] = item.finish


class ResponseStream:
    """The output of one HTTP request, for its reader.

    It is a context manager: leaving it early aborts the running choices.

    Unread text is joined per choice, so that a slow reader only costs the memory of the text.
    """

    def __init__(
        self, rids: list[str], received_s: float, on_close: Callable[[ResponseStream], None], owner: str = ""
    ) -> None:
        self.rids = rids
        self.owner = owner
        self.received_s = received_s
        self.sent_s = received_s  # time at which the request was sent to the engine
        self.deadline_s = (
            math.inf
        )  # on the clock of received_s; enforced here only while the scheduler is not responding
        self.had_token = False
        self.client_id = ""  # the first id by which the client knows the request, for the log
        self.facts = StreamFacts()
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
        self.close()

    def close(self) -> None:
        """Abort the running choices and remove the request from the open ones. Further calls have no effect."""
        self._on_close(self)

    @property
    def done(self) -> bool:
        """True if every choice has finished and all output has been read."""
        return not self._num_open and not self._unread and self._error is None

    @property
    def has_outcome(self) -> bool:
        """True if the outcome is known, even if it has not been read."""
        return not self._num_open or self._error is not None

    async def next_deltas(self, timeout_s: float | None = None) -> list[Delta]:
        """Wait for output and return it in choice order. Returns [] if no output arrives within ``timeout_s`` seconds.

        Raises the request's error after the earlier output has been read. Must not be called when ``done``.
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
        """Wait until all choices have finished and return one Delta per choice.

        Raises the error of a failed request.
        """
        await self._outcome.wait()
        if self._error is not None:
            raise self._error
        return await self.next_deltas()

    @property
    def error(self) -> Rejected | None:
        """The error that ended the request; None if there is no error."""
        return self._error

    def add(self, index: int, item: TextItem) -> bool:
        """Add output of choice ``index``. Returns True if the item ends the last open choice."""
        ends = item.finish in ("stop", "length")
        delta = self._held.pop(index, None) or self._unread.get(index) or Delta(index)
        delta.add(item)
        if not (item.tokens or item.text or ends) and index not in self._unread:
            # The item has data about the prompt only: hold it back, so that a failure can still become an HTTP error.
            self._held[index] = delta
            return False
        self._unread[index] = delta
        self._num_open -= ends
        self._news.set()
        if not self._num_open:
            self._outcome.set()
        return not self._num_open

    def fail(self, error: Rejected) -> None:
        """End the request with ``error``. Does nothing if the outcome is known already."""
        if not self.has_outcome:
            self._error = error
            self._news.set()
            self._outcome.set()
