"""The request bodies of the OpenAI routes and the rules for each field. Turns fields into sampling parameters."""

from __future__ import annotations

import secrets
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from ebbtide.errors import Rejected
from ebbtide.messages import SamplingParams, TextParams
from ebbtide.tokenizer_mgr.prompts import PromptReader

from ..structured.constraints import ConstraintFields
from .session_request import SessionParams

MAX_STOP_STRINGS = 16
MAX_STOP_BYTES = 4096
MAX_CHOICES = 1024  # n × prompts of one request
GREEDY_BELOW = 1e-3  # at such temperatures only exact ties could fall otherwise, and in half precision nothing is left
SMALLEST_TOP_P = 1e-9  # OpenAI accepts 0: the likeliest token alone

Penalty = Annotated[float, Meta(ge=-2, le=2)]
Share = Annotated[float, Meta(ge=0, le=1)]
Index = Annotated[int, Meta(ge=0)]


class StreamOptions(msgspec.Struct):
    """Options of a stream."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class GenerationFields(ConstraintFields, kw_only=True):
    """What chat and text completions share. null means absent."""

    model: str | None = None
    max_tokens: Index | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Share | None = None
    top_k: Annotated[int, Meta(ge=-1)] | None = None
    min_p: Share | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, Meta(gt=0, le=2)] | None = None
    logit_bias: dict[str, Annotated[float, Meta(ge=-100, le=100)]] | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    n: Annotated[int, Meta(ge=1, le=128)] | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[Index] | None = None
    min_tokens: Index | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    include_stop_str_in_output: bool | None = None
    no_stop_trim: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    priority: Annotated[int, Meta(ge=-100, le=100)] | None = None
    cache_salt: Annotated[str, Meta(min_length=1, max_length=256)] | None = None
    session_id: str | None = None
    session_params: SessionParams | None = None
    rid: str | None = None
    request_id: str | None = None
    timeout: Annotated[float, Meta(gt=0)] | None = None
    prompt_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None

    @property
    def names(self) -> tuple[str | None, ...]:
        """The ids by which the client may name the request later."""
        return (self.rid, self.request_id)


class CompletionBody(GenerationFields, kw_only=True):
    """POST /v1/completions. prompt: a text, texts, token ids, or lists of token ids."""

    prompt: str | list[Any]
    logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    echo: bool | None = None


ELSEWHERE = ("stop_regex", "bad_words", "allowed_token_ids", "logprob_token_ids", "use_beam_search")
REWRITTEN = ("truncate_prompt_tokens", "documents", "prompt_embeds", "web_search_options")  # another prompt
LENGTHS = ("thinking_token_budget", "min_new_tokens")
INSIDES = ("logits_processors", "custom_logit_processor", "return_hidden_states")
CONSTRAINTS = ("grammar", "json_schema", "structural_tag")  # the others are in ConstraintFields
GUIDED = ("guided_json", "guided_regex", "guided_choice", "guided_grammar", "guided_decoding_backend")
UNSUPPORTED = (*ELSEWHERE, *REWRITTEN, *LENGTHS, *INSIDES, *CONSTRAINTS, *GUIDED, "lora_path", "chat_template")
CHAT_UNSUPPORTED = (*UNSUPPORTED, "audio", "echo")
LEGACY = {"functions": "tools", "function_call": "tool_choice"}  # what took their place
COMPLETION_UNSUPPORTED = (*UNSUPPORTED, "suffix", "best_of")

CHECKED_APART = ("modalities", *LEGACY)


def refuse_unsupported(raw: dict[str, Any], names: tuple[str, ...]) -> None:
    """Raises Rejected for a field that others know and this server does not: ignoring it would change the answer."""
    for name in names:
        value = raw.get(name)
        if value is not None and value is not False and value not in ("", []):
            raise Rejected(f"'{name}' is not supported by this server.", param=name)
    for name, successor in LEGACY.items():
        if raw.get(name) is not None:
            raise Rejected(f"'{name}' is not supported by this server: use '{successor}'.", param=name)
    if raw.get("modalities") not in (None, ["text"]):
        raise Rejected("'modalities' other than text is not supported by this server.", param="modalities")


def check_stream(fields: GenerationFields) -> None:
    """Raises Rejected for stream options without a stream."""
    if fields.stream_options is not None and not fields.stream:
        raise Rejected("'stream_options' is only allowed together with 'stream': true.", param="stream_options")


def text_params(fields: GenerationFields) -> TextParams:
    """What the detokenizer is told. Raises Rejected."""
    stop = [fields.stop] if isinstance(fields.stop, str) else fields.stop or []
    if len(stop) > MAX_STOP_STRINGS:
        raise Rejected(f"'stop' has {len(stop)} entries; at most {MAX_STOP_STRINGS} are allowed.", param="stop")
    if not all(stop):
        raise Rejected("'stop' has an empty entry.", param="stop")
    if any(len(entry.encode()) > MAX_STOP_BYTES for entry in stop):
        raise Rejected(f"An entry of 'stop' is longer than {MAX_STOP_BYTES} bytes.", param="stop")
    include_stop = bool(fields.include_stop_str_in_output or fields.no_stop_trim)
    return TextParams(
        stop=tuple(dict.fromkeys(stop)),
        include_stop=include_stop,
        shown_stop_ids=tuple(dict.fromkeys(fields.stop_token_ids or ())) if include_stop else (),
        skip_special_tokens=fields.skip_special_tokens is not False,
        min_tokens=fields.min_tokens or 0,
    )


def sampling_params(
    fields: GenerationFields,
    reader: PromptReader,
    *,
    max_tokens: int,
    logprobs: int | None,
    prompt_logprobs: int | None = None,
) -> SamplingParams:
    """What the scheduler and the runner are told: every value checked and complete. Raises Rejected."""
    if fields.min_tokens is not None and fields.min_tokens > max_tokens:
        raise Rejected(
            f"'min_tokens' is {fields.min_tokens}, more than the {max_tokens} tokens allowed.", param="min_tokens"
        )
    temperature = _or(fields.temperature, 1.0)
    ignore_eos = bool(fields.ignore_eos)
    stop_ids = reader.checked_ids(fields.stop_token_ids or [], "stop_token_ids")
    return SamplingParams(
        max_tokens=max_tokens,
        temperature=0.0 if temperature < GREEDY_BELOW else temperature,
        top_p=max(_or(fields.top_p, 1.0), SMALLEST_TOP_P),
        top_k=_top_k(fields.top_k, reader.vocab_size),
        min_p=_or(fields.min_p, 0.0),
        presence_penalty=_or(fields.presence_penalty, 0.0),
        frequency_penalty=_or(fields.frequency_penalty, 0.0),
        repetition_penalty=_or(fields.repetition_penalty, 1.0),
        logit_bias=_logit_bias(fields.logit_bias or {}, reader.vocab_size),
        seed=secrets.randbits(63) if fields.seed is None else fields.seed,
        min_tokens=fields.min_tokens or 0,
        stop_token_ids=tuple(dict.fromkeys([*stop_ids, *(() if ignore_eos else reader.extra_stop_ids)])),
        ignore_eos=ignore_eos,
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
    )


def namespace(fields: GenerationFields) -> str:
    """The part of the prefix cache that the request may use; the tag keeps salts apart from other kinds of names."""
    return f"salt:{fields.cache_salt}" if fields.cache_salt else ""


def check_num_choices(num_prompts: int, n: int) -> None:
    """Raises Rejected for more choices in one request than the server takes."""
    if num_prompts * n > MAX_CHOICES:
        raise Rejected(f"{num_prompts} prompts × n = {n} is more than {MAX_CHOICES} choices in one request.", param="n")


def _or(value: float | None, default: float) -> float:
    return default if value is None else value


def _top_k(value: int | None, vocab_size: int) -> int:
    return 0 if value is None or value < 1 or value >= vocab_size else value


def _logit_bias(bias: dict[str, float], vocab_size: int) -> dict[int, float]:
    result: dict[int, float] = {}
    for key, value in bias.items():
        if not (key.isascii() and key.isdecimal() and len(key) < 20 and int(key) < vocab_size):
            raise Rejected(
                f"'logit_bias' has the key {key[:50]!r}: keys are token ids from 0 to {vocab_size - 1}.",
                param="logit_bias",
            )
        result[int(key)] = value
    return result
