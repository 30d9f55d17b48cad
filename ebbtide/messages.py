"""Every message that crosses a process boundary, as plain data. Nothing here does work.

Field order is the wire format (msgpack arrays): both ends are always the same version of ebbtide.
"""

from __future__ import annotations

import msgspec

Finish = str  # "stop" | "length" | "abort": the values that travel; the HTTP layer maps them


class Message(msgspec.Struct, frozen=True, array_like=True, tag=True, gc=False):
    """Base of the tagged messages."""


class Part(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Base of what messages are made of."""


# ---------------------------------------------------------------------- a request


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
    logit_bias: dict[int, float] = {}
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


class OpenSessionReq(Message, frozen=True):
    """Front → scheduler: open a session; answered by a ``Reply`` to ``call``. timeout_s: None is the server's."""

    call: str
    session_id: str
    owner: str = ""
    streaming: bool = False
    timeout_s: float | None = None


class CloseSessionReq(Message, frozen=True):
    """Front → scheduler: close a session, its running turn finishes detached; answered by a ``Reply``."""

    call: str
    session_id: str
    owner: str = ""


class ListSessionsReq(Message, frozen=True):
    """Front → scheduler: describe one session, or all of an owner's with ``session_id`` ""; answered by a ``Reply``."""

    call: str
    owner: str = ""
    session_id: str = ""


class ControlReq(Message, frozen=True):
    """Front → scheduler: steer the whole scheduler; answered by a ``Reply``. action: flush, pause or continue.

    timeout_s: how long a flush may wait for a moment without requests.
    """

    call: str
    action: str
    timeout_s: float = 0.0


class SessionInfo(Part, frozen=True):
    """One open session. state: running (a turn runs or waits), warm (its KV is held) or cold.

    num_tokens: of all committed turns. held_tokens: with KV kept for it, in whole pages.
    """

    session_id: str
    streaming: bool
    state: str
    num_turns: int
    num_tokens: int
    held_tokens: int
    idle_s: float
    timeout_s: float


class Reply(Message, frozen=True):
    """Scheduler → front: the answer to one call. status is the HTTP status; code and message are set when it failed."""

    call: str
    status: int = 200
    code: str | None = None
    message: str = ""
    sessions: list[SessionInfo] = []


ToScheduler = (
    GenerateReq | AbortReq | FinishReq | OpenSessionReq | CloseSessionReq | ListSessionsReq | ControlReq | UseVocabulary
)


# ---------------------------------------------------------------------- tokens on their way out


class TokenLogprob(Part, frozen=True):
    """Log-probability of one chosen token and of the most likely ones, as many as were asked for.

    rank: 1 for the likeliest of all tokens; only prompt tokens have one.
    """

    logprob: float
    top_ids: list[int] = []
    top_logprobs: list[float] = []
    rank: int | None = None


class PromptScores(Part, frozen=True):
    """The next tokens of a prompt and how likely each was, in order and each once. The first of a prompt has none."""

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
    prompt: the next tokens of the prompt, scored, in an item without output tokens.
    """

    rid: str
    tokens: list[int]
    start: StreamStart | None = None
    finish: Finish | None = None
    stop_token: int | None = None
    logprobs: list[TokenLogprob] | None = None
    pressure: PressureUsage | None = None
    prompt: PromptScores | None = None


class TokenBatch(Message, frozen=True):
    """Scheduler → detokenizer: everything one step produced, at most one message a step."""

    items: list[TokenItem]


ToDetokenizer = TokenBatch


class TextAlternative(Part, frozen=True):
    """One token as text: ``raw`` are its bytes, which may be a fraction of a character."""

    token: str
    raw: bytes
    logprob: float
    token_id: int


class TextLogprob(Part, frozen=True):
    """The chosen token and the most likely ones at one position. rank: as in ``TokenLogprob``."""

    chosen: TextAlternative
    top: list[TextAlternative] = []
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


# ---------------------------------------------------------------------- about the processes


class Stats(Message, frozen=True):
    """Scheduler → front: one snapshot for the metrics registry, at most every 100 ms and once on becoming idle.

    totals are monotone over the scheduler's life; observations are the histogram samples since the last snapshot.
    A key is the metric's name without the prefix; one label is written ``name{label=value}``.
    """

    gauges: dict[str, float]
    totals: dict[str, float]
    observations: dict[str, list[float]]


class Heartbeat(Message, frozen=True):
    """A child's loop is alive. ``handled`` counts the messages it has taken from its inbox.

    state: running, blocked or idle. reason: why nothing runs although requests wait, once that has lasted.
    stalled_s: seconds since the last progress; 0 when idle. num_requests: how many it keeps something of.
    """

    source: str
    handled: int
    state: str = "idle"
    reason: str = ""
    stalled_s: float = 0.0
    num_requests: int = 0


class PressureVictim(Part, frozen=True):
    """One request that gave way. tokens_to_recompute: what its return costs when nothing of it stays cached."""

    rid: str
    num_output_tokens: int
    prompt_tokens: int
    freed_tokens: int
    tokens_to_recompute: int
    num_retractions: int
    offloaded: bool = False


class PressureEvent(Message, frozen=True):
    """Scheduler → front: memory was short (or a test or a higher priority asked), and who gave way.

    cause: "memory", "priority" or "test". Tokens are whole pages. aborted: the last request, when not even it fits.
    """

    step: int
    cause: str
    victims: list[PressureVictim]
    available_before: int
    available_after: int
    ratio_before: float
    ratio_after: float
    num_running: int
    num_waiting: int
    aborted: str | None = None


ToFront = AbortReq | Stats | Heartbeat | TextBatch | PressureEvent | Reply


class RunnerInfo(Part, frozen=True):
    """What the model runner measured; said once when ready. The pool has ``num_pages`` pages of ``page_size``.

    num_host_pages: size of the host tier, in pages like the pool's. recompute_token_s, restore_token_s: measured
    seconds per token of prefill, and of copying K/V to the host and back; both 0 when there is no host tier.
    """

    context_length: int
    vocab_size: int
    num_pages: int
    page_size: int
    num_rows: int
    eos_token_ids: tuple[int, ...]
    pool_bytes: int = 0
    device: str = "cpu"
    dtype: str = "float32"
    attention: str = ""
    max_in_flight: int = 1
    num_host_pages: int = 0
    recompute_token_s: float = 0.0
    restore_token_s: float = 0.0
