"""Messages that carry output: tokens to the detokenizer, text to the front."""

from __future__ import annotations

import msgspec

from .base import Finish, Message, Part
from .requests import TextParams


class TokenLogprob(Part, frozen=True):
    """Log-probability of one chosen token and of the most likely ones, as many as were asked for.

    rank: 1 for the likeliest of all tokens; only prompt tokens have one.
    """

    logprob: float
    top_ids: list[int] = msgspec.field(default_factory=list)
    top_logprobs: list[float] = msgspec.field(default_factory=list)
    rank: int | None = None


class PromptLogprobs(Part, frozen=True):
    """Log-probabilities of the next prompt tokens, in order and each once. A prompt's first token has none."""

    tokens: list[int]
    logprobs: list[TokenLogprob]


class StreamStart(Part, frozen=True):
    """What the detokenizer must know before a request's first token.

    prompt_tail: the prompt's last tokens (at most 8), so that a character split across the boundary comes out whole.
    prompt_tokens: tokens before the first output; a session's earlier turns count.
    """

    text: TextParams
    prompt_tail: list[int]
    cached_tokens: int
    prompt_tokens: int = 0


class PressureUsage(Part, frozen=True):
    """What memory pressure cost one request; only present when it was retracted."""

    num_retractions: int
    recomputed_tokens: int
    queue_ms: int


class TokenItem(Part, frozen=True):
    """New output tokens of one request in one step.

    start: only on the first item of a request. finish "abort" closes the entry: the AbortReq says why.
    stop_token: the token id that ended it, when one did (its text is not part of the answer, but for shown_stop_ids).
    prompt: the next tokens of the prompt with their log-probabilities, in an item without output tokens.
    """

    rid: str
    tokens: list[int]
    start: StreamStart | None = None
    finish: Finish | None = None
    stop_token: int | None = None
    logprobs: list[TokenLogprob] | None = None
    pressure: PressureUsage | None = None
    prompt: PromptLogprobs | None = None


class TokenBatch(Message, frozen=True):
    """Scheduler → detokenizer: everything one step produced, at most one message a step."""

    items: list[TokenItem]


class TextAlternative(Part, frozen=True):
    """One token as text: ``raw`` are its bytes, which may be a fraction of a character."""

    token: str
    raw: bytes
    logprob: float
    token_id: int


class TextLogprob(Part, frozen=True):
    """The chosen token and the most likely ones at one position. rank: as in ``TokenLogprob``."""

    chosen: TextAlternative
    top: list[TextAlternative] = msgspec.field(default_factory=list)
    rank: int | None = None


class TextItem(Part, frozen=True):
    """New text of one request.

    tokens: the output token ids covered by this item, also when its text is empty because characters are held back.
    matched: the stop string or stop token id that ended it. cached_tokens, prompt_tokens: only on the first item.
    num_output_tokens: total so far; on a stop string, the count at which the answer ends. num_shown_tokens: then, how
    many of them the text takes.
    prompt: log-probabilities of the next prompt tokens; all of them come before the first output token.
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


class TextBatch(Message, frozen=True):
    """Detokenizer → front: the text of one TokenBatch."""

    items: list[TextItem]
