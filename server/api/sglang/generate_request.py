"""The request of POST /generate in SGLang's names, and the same in those of this server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from ebbtide.errors import Rejected

from ...structured.constraints import Constraint, ebnf_constraint, json_constraint, regex_constraint
from ..fields import GenerationFields, Index, Penalty, Share
from ..session_request import SessionParams, TurnName

DEFAULT_MAX_TOKENS = 128
REFUSED_SAMPLING = ("structural_tag", "stop_regex", "custom_params")
CONSTRAINTS: dict[str, Callable[[str, str], Constraint]] = {
    "json_schema": json_constraint,
    "regex": regex_constraint,
    "ebnf": ebnf_constraint,
}
MEDIA = ("image_data", "audio_data", "video_data", "input_embeds")
UNSUPPORTED = (
    *MEDIA,
    *("token_ids_logprob", "lora_path", "lora_id", "return_hidden_states", "return_routed_experts"),
    *("custom_logit_processor", "return_prompt_token_ids", "bootstrap_room"),
)
V = TypeVar("V")
Start = Annotated[int, Meta(ge=-1)]
TopLogprobs = Annotated[int, Meta(ge=0, le=20)]
Limit = Annotated[float, Meta(gt=0)]
Salt = Annotated[str, Meta(min_length=1, max_length=256)]


class SamplingFields(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """sampling_params. An unknown name is an error: OpenAI's names, written here by mistake, would change nothing."""

    max_new_tokens: Index | None = None
    min_new_tokens: Index | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Share | None = None
    top_k: Annotated[int, Meta(ge=-1)] | None = None
    min_p: Share | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, Meta(gt=0, le=2)] | None = None
    logit_bias: dict[str, Annotated[float, Meta(ge=-100, le=100)]] | None = None
    sampling_seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    n: Annotated[int, Meta(ge=1, le=128)] | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[Index] | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    no_stop_trim: bool | None = None
    spaces_between_special_tokens: bool | None = None
    stream_interval: int | None = None
    json_schema: str | None = None
    regex: str | None = None
    ebnf: str | None = None
    structural_tag: Any = None
    stop_regex: Any = None
    custom_params: Any = None


class GenerateBody(msgspec.Struct, kw_only=True):
    """POST /generate. A batch is a list of texts or of lists of token ids; other fields are then lists or for all."""

    text: str | list[str] | None = None
    input_ids: list[Any] | None = None
    sampling_params: SamplingFields | list[SamplingFields] | None = None
    rid: TurnName | list[TurnName] | None = None
    stream: bool | None = None
    return_logprob: bool | list[bool] | None = None
    logprob_start_len: Start | list[Start] | None = None
    top_logprobs_num: TopLogprobs | list[TopLogprobs] | None = None
    return_text_in_logprobs: bool | None = None
    session_id: str | None = None
    session_params: SessionParams | None = None
    priority: Annotated[int, Meta(ge=-100, le=100)] | None = None
    cache_salt: Salt | None = None
    extra_key: Salt | None = None
    timeout: Limit | None = None
    model: str | None = None

    @property
    def names(self) -> tuple[str | None, ...]:
        """The ids by which the client may name the request later."""
        return tuple(self.rid) if isinstance(self.rid, list) else (self.rid,)


def prompts_of(body: GenerateBody) -> list[str | list[Any]]:
    """The prompts one by one. Raises Rejected unless there are some, as texts or as token ids."""
    if (body.text is None) == (body.input_ids is None):
        raise Rejected("Exactly one of 'text' and 'input_ids' is needed.", param="text")
    if body.text is not None:
        listed: list[Any] = [body.text] if isinstance(body.text, str) else body.text
        return _complete(listed, "text")
    ids = body.input_ids or []
    is_batch = bool(ids) and all(isinstance(entry, list) for entry in ids)
    return _complete(ids if is_batch else [ids], "input_ids")


def per_prompt(value: V | list[V] | None, default: V, count: int, param: str) -> list[V]:
    """A field that is one value for all prompts or a list with one for each. Raises Rejected for another length."""
    if not isinstance(value, list):
        return [default if value is None else value] * count
    if len(value) != count:
        raise Rejected(f"'{param}' has {len(value)} entries for {count} prompts.", param=param)
    return value


def openai_fields(sampling: SamplingFields, body: GenerateBody) -> GenerationFields:
    """The same request in the names of the OpenAI routes. Raises Rejected for what is not supported."""
    for name in REFUSED_SAMPLING:
        if getattr(sampling, name) is not None:
            raise Rejected(f"'{name}' is not supported by this server.", param=f"sampling_params.{name}")
    same = ("temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty")
    text = ("logit_bias", "n", "stop", "stop_token_ids", "ignore_eos", "skip_special_tokens", "no_stop_trim")
    return GenerationFields(
        max_tokens=sampling.max_new_tokens,
        min_tokens=sampling.min_new_tokens,
        seed=sampling.sampling_seed,
        cache_salt=body.cache_salt or body.extra_key,
        **{name: getattr(sampling, name) for name in (*same, *text)},
    )


def constraint_of(sampling: SamplingFields) -> Constraint | None:
    """What the answer must match; None for anything. Raises Rejected for more than one constraint."""
    given = [(name, value) for name in CONSTRAINTS if (value := getattr(sampling, name)) is not None]
    if len(given) > 1:
        raise Rejected(f"Only one of {', '.join(CONSTRAINTS)} is allowed.", param=f"sampling_params.{given[1][0]}")
    return CONSTRAINTS[given[0][0]](given[0][1], f"sampling_params.{given[0][0]}") if given else None


def _complete(listed: list[Any], param: str) -> list[Any]:
    if not listed or not all(listed):
        raise Rejected(f"'{param}' is empty, or has an empty entry.", param=param)
    return listed
