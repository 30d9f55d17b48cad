"""The response of POST /generate: one object per choice, complete or as a stream of chunks with the output so far."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ebbtide.errors import Rejected
from ebbtide.messages import TextAlternative, TextLogprob
from ebbtide.tokenizer_mgr.prepared_request import PreparedRequest
from ebbtide.tokenizer_mgr.response_stream import Delta

from ...http.error_replies import envelope
from ...http.middleware import is_valid_id
from ...http.streaming import Framing
from ..logprobs import MIN_LOGPROB


@dataclass(frozen=True, slots=True)
class LogprobView:
    """Which log-probabilities of one prompt and its choices the response includes.

    Attributes:
        top: number of alternatives per token; None for no log-probabilities
        start: index of the first prompt token with log-probabilities; None if only the output has them
    """

    top: int | None = None
    start: int | None = None

    @property
    def prompt_top(self) -> int | None:
        """Number of alternatives that the engine must compute at each prompt token; None for no log-probabilities."""
        return None if self.start is None else self.top


@dataclass(frozen=True, slots=True)
class ResponseOptions:
    """The format of one response.

    Attributes:
        names: the id of each choice
        views: the log-probabilities to show for each prompt
        pieces: the bytes of each token id; None if tokens are shown without text
        is_list: True if the response is a list
        incremental: True if a chunk contains only the new output
    """

    names: list[str]
    views: list[LogprobView]
    pieces: list[bytes] | None
    is_list: bool
    incremental: bool


@dataclass(slots=True)
class _Choice:
    """The output of one choice so far.

    Attributes:
        text: the text of the next chunk.
        tokens: the tokens of the next chunk.
        logprobs: the log-probabilities of the next chunk.
    """

    prompt_tokens: int
    text: str = ""
    tokens: list[int] = field(default_factory=list)
    logprobs: list[TextLogprob] = field(default_factory=list)
    prompt_logprobs: list[TextLogprob] = field(default_factory=list)
    num_output_tokens: int = 0
    cached_tokens: int = 0
    num_retractions: int = 0
    finish: dict[str, Any] | None = None

    def add(self, delta: Delta) -> None:
        self.text += delta.text
        self.tokens += delta.tokens
        self.logprobs += delta.logprobs
        self.prompt_logprobs += delta.prompt
        self.num_output_tokens = delta.num_output_tokens
        self.prompt_tokens = delta.prompt_tokens or self.prompt_tokens
        self.cached_tokens = delta.cached_tokens if delta.cached_tokens is not None else self.cached_tokens
        if delta.pressure is not None:
            self.num_retractions = delta.pressure.num_retractions
        if delta.finish == "length":
            self.finish = {"type": "length", "length": delta.num_output_tokens}
        elif delta.finish is not None:
            self.finish = {"type": delta.finish, "matched": delta.matched}


class GenerateResponseBuilder:
    """Builds one response in SGLang's native format.

    clock: returns the time in seconds.
    """

    def __init__(self, request: PreparedRequest, options: ResponseOptions, clock: Callable[[], float]) -> None:
        self._options = options
        self._clock = clock
        self._began_s = clock()
        self._request = request
        self.framing = Framing(failure=self.failure)
        self._choices = [_Choice(len(prompt)) for prompt in request.prompts for _ in range(request.n)]

    def whole(self, deltas: list[Delta]) -> dict[str, Any] | list[Any]:
        """Return the response to a non-streaming request."""
        for delta in deltas:
            self._choices[delta.index].add(delta)
        shown = [self._shown(index) for index in range(len(self._choices))]
        return shown if self._options.is_list else shown[0]

    def first_chunks(self) -> list[dict[str, Any]]:
        """Return no chunk."""
        return []

    def chunks(self, delta: Delta) -> list[dict[str, Any]]:
        """Return one chunk, with all output of the choice so far or, if ``incremental``, only the new output."""
        choice = self._choices[delta.index]
        choice.add(delta)
        chunk = self._chunk(delta.index)
        if self._options.incremental:
            choice.text, choice.tokens, choice.logprobs = "", [], []
        return [chunk]

    def last_chunks(self) -> list[dict[str, Any]]:
        """Return no chunk."""
        return []

    def failure(self, error: Rejected) -> list[dict[str, Any]]:
        """Return the last chunk of a failed stream. The chunk belongs to the first choice that has not finished."""
        index = next((i for i, choice in enumerate(self._choices) if choice.finish is None), 0)
        self._choices[index].finish = {"type": "abort", "message": error.message, "status_code": error.status}
        return [{**self._chunk(index), **envelope(error)}]

    def _chunk(self, index: int) -> dict[str, Any]:
        return {**self._shown(index), "index": index} if self._options.is_list else self._shown(index)

    def _shown(self, index: int) -> dict[str, Any]:
        choice = self._choices[index]
        meta = {
            "id": self._options.names[index],
            "finish_reason": choice.finish,
            "prompt_tokens": choice.prompt_tokens,
            "completion_tokens": choice.num_output_tokens,
            "cached_tokens": choice.cached_tokens,
            "total_retractions": choice.num_retractions,
            "e2e_latency": self._clock() - self._began_s,
        }
        view = self._options.views[index // self._request.n]
        if view.top is not None:
            meta |= self._input_logprobs(index, view) | self._logprobs("output", choice.logprobs, top=view.top)
        return {"text": choice.text, "output_ids": choice.tokens, "meta_info": meta}

    def _input_logprobs(self, index: int, view: LogprobView) -> dict[str, Any]:
        """Return the prompt's log-probabilities. The list is empty for all choices of the prompt except the first.

        As in SGLang, the first token shown has no log-probability.
        """
        choice, prompt = self._choices[index], self._request.prompts[index // self._request.n]
        if view.start is None or index % self._request.n or view.start >= len(prompt):
            return {"input_token_logprobs": []}
        first = prompt[view.start]
        # The engine's list begins at token 1.
        lists = self._logprobs("input", choice.prompt_logprobs[view.start :], top=view.top or 0)
        pieces = self._options.pieces
        text = None if pieces is None else b"".join(pieces[first : first + 1]).decode("utf-8", "replace")
        lists["input_token_logprobs"].insert(0, [None, first, text])
        if view.top:
            lists["input_top_logprobs"].insert(0, None)
        return lists

    def _logprobs(self, side: str, entries: list[TextLogprob], *, top: int) -> dict[str, Any]:
        shown: dict[str, Any] = {f"{side}_token_logprobs": [self._triple(entry.chosen) for entry in entries]}
        if top:
            shown[f"{side}_top_logprobs"] = [[self._triple(one) for one in entry.top] for entry in entries]
        return shown

    def _triple(self, token: TextAlternative) -> list[Any]:
        """Return [log-probability, token id, text or None]."""
        logprob = token.logprob if math.isfinite(token.logprob) else MIN_LOGPROB
        return [logprob, token.token_id, None if self._options.pieces is None else token.token]


def choice_names(rid: str | list[str] | None, request_id: str, num_prompts: int, n: int) -> list[str]:
    """Return the name of each choice. It is derived from ``rid`` if that is valid, else from ``request_id``.

    Raises Rejected if ``rid`` is a list that does not have one entry per prompt, all of them different.
    """
    if isinstance(rid, list):
        if len(rid) != num_prompts or len(set(rid)) != num_prompts:
            raise Rejected("'rid' must have one entry per prompt, all of them different.", param="rid")
        stems = [name if is_valid_id(name) else f"{request_id}-{prompt}" for prompt, name in enumerate(rid)]
    else:
        stem = rid if rid and is_valid_id(rid) else request_id
        stems = [stem] if num_prompts == 1 else [f"{stem}-{prompt}" for prompt in range(num_prompts)]
    return [stem if n == 1 else f"{stem}-{sample}" for stem in stems for sample in range(n)]
