"""Messages between the front process and the scheduler about generation requests."""

from __future__ import annotations

import msgspec

from .base import Message, Part


class SamplingParams(Part, frozen=True):
    """The sampling parameters of a request. The front process validates all values and fills in all defaults.

    Attributes:
        max_tokens: maximum number of output tokens. The front process's default is the limit of context and pool; 0
            only prefills.
        temperature: 0 means greedy.
        top_k: 0 disables it.
        seed: always set; the sample of output token i is a function of (seed, i) and the logits.
        logprobs: number of alternatives to return per output token; None for no log-probabilities.
        prompt_logprobs: number of alternatives to return per prompt token, except for the first token; None for no
            prompt log-probabilities. Set only for the first choice of a prompt.
        embedding: True to return the normalized hidden state of the last prompt token; ``max_tokens`` is then 0.
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
    embedding: bool = False


class TextParams(Part, frozen=True):
    """The options for the conversion of output tokens to text.

    Attributes:
        stop: stop strings.
        include_stop: True to keep the matched stop string in the text.
        min_tokens: as in SamplingParams; stop strings completed before this many output tokens are ignored.
        shown_ids: ids of control tokens that are kept even with ``skip_special_tokens``, because a parser needs them.
        shown_stop_ids: ids of stop tokens whose text is kept in the output; the text of other stop tokens is dropped.
    """

    stop: tuple[str, ...] = ()
    include_stop: bool = False
    skip_special_tokens: bool = True
    min_tokens: int = 0
    shown_ids: tuple[int, ...] = ()
    shown_stop_ids: tuple[int, ...] = ()


class SessionTurn(Part, frozen=True):
    """The session that a prompt continues, and the position in it.

    Attributes:
        owner: only requests with this owner can use the session; "" if the session has no owner.
        turn: name of the turn in the session; "" to use the request's id.
        continuation: token ids that replace ``prompt`` if the session already has a turn; None to use ``prompt``
            always.
        head: number of leading tokens of ``continuation`` that close the previous turn. Those of them with which the
            stored turn already ends are dropped.
        context_limit: True to reduce ``sampling.max_tokens`` to the space that the turn's full prompt leaves in the
            context and the pool; False to refuse a larger value.
        parent: name of the turn to branch from; "" for the latest. This field and the next three apply to plain
            sessions only.
        offset: number of parent tokens to keep; -1 for all.
        replace: True to remove the parent's later turns.
        drop_previous_output: True to remove the parent's output tokens.
        refusal: reason why the messages cannot be a first turn (``prompt`` is then empty) or a later turn
            (``continuation`` is then empty).
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

    Attributes:
        rids: one id per choice, in order; choice i samples with ``choice_seed(sampling.seed, i)``.
        prompt: token ids.
        account: opaque name of the API key, for fairness between keys; "" without a key. It must not be logged.
        namespace: part of the prefix-cache key; "" for the shared namespace. Any other namespace starts with a tag
            that clients cannot choose.
        session: set if the prompt is the next turn of a session; the request then has one choice.
        grammar: llguidance grammar that every choice must match; "" for none.
        queue_timeout_s: seconds until the request must have started running; None for no limit.
        timeout_s: seconds until the request must have finished; None for no limit.
        num_before: number of choices of the same HTTP request in the GenerateReqs sent immediately before this one.
    """

    rids: tuple[str, ...]
    prompt: list[int]
    sampling: SamplingParams
    text: TextParams = TextParams()
    priority: int = 0
    account: str = ""
    namespace: str = ""
    session: SessionTurn | None = None
    grammar: str = ""
    queue_timeout_s: float | None = None
    timeout_s: float | None = None
    num_before: int = 0


class UseVocabulary(Message, frozen=True):
    """Front → scheduler: the model's ``Vocabulary``, for grammars. The front process sends it before any request."""

    pieces: list[bytes]
    special_ids: list[int]
    eos_ids: list[int]


class AbortReq(Message, frozen=True):
    """From the front process: abort this request. To the front process, from another process: this request was aborted.

    The following attributes are set only in messages to the front process.

    Attributes:
        num_output_tokens: number of the request's output tokens; if not 0, the front process delivers their text before
            the error.
        status: HTTP status of the error response; ``code``, ``message`` and ``retry_after_s`` are its other fields.
    """

    rid: str
    reason: str
    status: int = 0
    code: str | None = None
    message: str = ""
    num_output_tokens: int = 0
    retry_after_s: float | None = None


class FinishReq(Message, frozen=True):
    """Front → scheduler: a stop string ended this request.

    Attributes:
        num_output_tokens: number of output tokens up to and including the one that completed the stop string.
        num_shown_tokens: number of these tokens that form the returned text, after which a session continues; None for
            all of them.
    """

    rid: str
    num_output_tokens: int
    num_shown_tokens: int | None = None


class ControlReq(Message, frozen=True):
    """Front → scheduler: control the whole scheduler. The answer is a ``Reply``.

    Attributes:
        call: id that the reply repeats.
        action: "flush", "pause" or "continue".
        timeout_s: maximum time in seconds that a flush waits for the running and queued requests to end.
    """

    call: str
    action: str
    timeout_s: float = 0.0
