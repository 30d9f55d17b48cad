"""Messages that carry output: tokens to the detokenizer, text to the front process."""

from __future__ import annotations

import msgspec

from .base import Finish, Message, Part
from .requests import TextParams


class TokenLogprob(Part, frozen=True):
    """The log-probability of one token, and those of the most likely tokens at its position.

    Attributes:
        top_ids: ids of the most likely tokens, the most likely first, parallel to ``top_logprobs``.
        rank: rank of the token by probability, 1 for the most likely token; None for output tokens.
    """

    logprob: float
    top_ids: list[int] = msgspec.field(default_factory=list)
    top_logprobs: list[float] = msgspec.field(default_factory=list)
    rank: int | None = None


class PromptLogprobs(Part, frozen=True):
    """Log-probabilities of the next prompt tokens, in order. The first token of a prompt has none."""

    tokens: list[int]
    logprobs: list[TokenLogprob]


class StreamStart(Part, frozen=True):
    """Data that the detokenizer needs before a request's first token.

    Attributes:
        prompt_tail: the last prompt tokens (at most 8), needed to decode a character that begins in the prompt.
        cached_tokens: number of prompt tokens found in the prefix cache.
        prompt_tokens: number of tokens before the first output token, including earlier turns of a session.
    """

    text: TextParams
    prompt_tail: list[int]
    cached_tokens: int
    prompt_tokens: int = 0


class PressureUsage(Part, frozen=True):
    """The cost of memory pressure for one request; present only if the request was retracted."""

    num_retractions: int
    recomputed_tokens: int
    queue_ms: int


class TokenItem(Part, frozen=True):
    """The new output tokens of one request in one step.

    Attributes:
        start: set only on the first item of a request.
        finish: finish reason, set only on the last item; for "abort", the AbortReq states the cause.
        stop_token: id of the stop token that ended the output; its text is returned only if it is in
            ``shown_stop_ids``.
        prompt: log-probabilities of the next prompt tokens; the item then has no output tokens.
        embedding: vector of the prompt as little-endian float32, in the only item of an embedding request.
    """

    rid: str
    tokens: list[int]
    start: StreamStart | None = None
    finish: Finish | None = None
    stop_token: int | None = None
    logprobs: list[TokenLogprob] | None = None
    pressure: PressureUsage | None = None
    prompt: PromptLogprobs | None = None
    embedding: bytes = b""


class TokenBatch(Message, frozen=True):
    """Scheduler → detokenizer: the output of one step; at most one message per step."""

    items: list[TokenItem]


class TextAlternative(Part, frozen=True):
    """One token as text, with its log-probability.

    Attributes:
        token: text of the token.
        raw: bytes of the token, which may be an incomplete UTF-8 sequence.
    """

    token: str
    raw: bytes
    logprob: float
    token_id: int


class TextLogprob(Part, frozen=True):
    """The chosen token and the most likely tokens at one position.

    Attributes:
        rank: as in ``TokenLogprob``.
    """

    chosen: TextAlternative
    top: list[TextAlternative] = msgspec.field(default_factory=list)
    rank: int | None = None


class TextItem(Part, frozen=True):
    """New text of one request.

    Attributes:
        tokens: output token ids of this item, even if their text is held back because a character is incomplete.
        num_output_tokens: total number of output tokens so far; after a stop string, up to and including the token
            that completed it.
        matched: stop string or stop token id that ended the output; None for another end.
        cached_tokens, prompt_tokens: as in StreamStart; set only on the first item.
        prompt: log-probabilities of the next prompt tokens, sent before the first output token.
        num_shown_tokens: after a stop string, the number of output tokens that form the text.
        embedding: as in TokenItem.
    """

    rid: str
    text: str
    tokens: list[int]
    num_output_tokens: int
    finish: Finish | None = None
    matched: str | int | None = None
    logprobs: list[TextLogprob] | None = None
    cached_tokens: int | None = None
    pressure: PressureUsage | None = None
    prompt_tokens: int | None = None
    prompt: list[TextLogprob] | None = None
    num_shown_tokens: int | None = None
    embedding: bytes = b""


class TextBatch(Message, frozen=True):
    """Detokenizer → front: the text of one TokenBatch."""

    items: list[TextItem]
