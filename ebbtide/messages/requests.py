"""Requests that the front sends to the scheduler, and their ends."""

from __future__ import annotations

import msgspec

from .base import Message, Part


class SamplingParams(Part, frozen=True):
    """How tokens are drawn. All values are checked and complete when they leave the front.

    max_tokens: output tokens; the front fills in the rest of the context when the client gave none. 0 computes the
    prompt only. temperature: 0 is greedy. top_k: 0 is off. logprobs: None is off, k ≥ 0 asks for k alternatives.
    prompt_logprobs: the same for every prompt token but the first; only the first choice of a prompt has them.
    seed: always set; the draw of output token i is a function of (seed, i) and the logits only.
    """

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] = msgspec.field(default_factory=dict)
    seed: int = 0
    min_tokens: int = 0
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None


class TextParams(Part, frozen=True):
    """What the detokenizer needs to turn tokens into the client's text.

    min_tokens: as in SamplingParams; a stop string that completes before this many output tokens does not count.
    shown_ids: control tokens that are shown even if others are skipped, because a parser looks for them.
    shown_stop_ids: tokens that are shown when they end the answer; any other's text is left out.
    """

    stop: tuple[str, ...] = ()
    include_stop: bool = False
    skip_special_tokens: bool = True
    min_tokens: int = 0
    shown_ids: tuple[int, ...] = ()
    shown_stop_ids: tuple[int, ...] = ()


class SessionTurn(Part, frozen=True):
    """Which session a prompt continues, and where.

    owner: who may see the session, "" for everybody's. turn: the turn's own name in the session, "" for the request's.
    continuation: the prompt when the session has a turn already, None when ``prompt`` serves always. head: how many of
    its first tokens close the turn before; those that the stored turn ends with already are dropped.
    refusal: why the messages cannot be a first turn (``prompt`` is empty) or a later one (``continuation`` is empty).
    context_limit: whether ``sampling.max_tokens`` is only "the rest of the context", to be cut to what is left.
    parent, offset, replace, drop_previous_output: plain sessions only. parent: the turn to branch from, "" for the
    latest. offset: tokens of the parent to keep, -1 for all. replace: the parent's later turns are forgotten.
    """

    session_id: str
    owner: str = ""
    turn: str = ""
    continuation: list[int] | None = None
    head: int = 0
    context_limit: bool = False
    parent: str = ""
    offset: int = -1
    replace: bool = False
    drop_previous_output: bool = False
    refusal: str = ""


class GenerateReq(Message, frozen=True):
    """Front → scheduler: one prompt and its choices.

    rids: one id per choice, in order; choice i samples with ``choice_seed(sampling.seed, i)``.
    namespace: part of the prefix-cache key, "" for the shared one; it begins with a type tag that no client chooses.
    session: the prompt is the next part of a session; one choice only.
    grammar: what every choice must match, as llguidance writes grammars; "" for anything.
    queue_timeout_s, timeout_s: seconds until it must have begun to run, and until it must have ended; None is for ever.
    num_before: choices of the same HTTP request in the messages just before this one.
    """

    rids: tuple[str, ...]
    prompt: list[int]
    sampling: SamplingParams
    text: TextParams = TextParams()
    priority: int = 0
    namespace: str = ""
    session: SessionTurn | None = None
    grammar: str = ""
    queue_timeout_s: float | None = None
    timeout_s: float | None = None
    num_before: int = 0


class UseVocabulary(Message, frozen=True):
    """Front → scheduler: the model's tokens (``Vocabulary``), which grammars are about. Comes before any request."""

    pieces: list[bytes]
    special_ids: list[int]
    eos_ids: list[int]


class AbortReq(Message, frozen=True):
    """Front → scheduler: this request is no longer wanted. Scheduler → front: this request was given up.

    num_output_tokens: how many output tokens the client may still expect before this end (scheduler → front only).
    status, code, message, retry_after_s: the HTTP answer (scheduler → front only).
    """

    rid: str
    reason: str
    status: int = 0
    code: str | None = None
    message: str = ""
    num_output_tokens: int = 0
    retry_after_s: float | None = None


class FinishReq(Message, frozen=True):
    """Front → scheduler: a stop string ended this request after ``num_output_tokens`` output tokens.

    num_shown_tokens: how many of them make up the text that was shown; a session goes on from there. None: all.
    """

    rid: str
    num_output_tokens: int
    num_shown_tokens: int | None = None


class ControlReq(Message, frozen=True):
    """Front → scheduler: steer the whole scheduler; answered by a ``Reply``. action: flush, pause or continue.

    timeout_s: how long a flush may wait for a moment without requests.
    """

    call: str
    action: str
    timeout_s: float = 0.0
