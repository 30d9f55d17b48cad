"""The request of POST /generate, SGLang's native route, and its translation to ebbtide's request types."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from ebbtide.errors import Rejected

from ...structured.constraints import Constraint, ebnf_constraint, json_constraint, regex_constraint
from ..generation_request import (
    LONGEST,
    CacheSalt,
    GenerationRequest,
    Index,
    NumTop,
    Priority,
    SamplingOptions,
    Seed,
    Timeout,
)
from ..session_params import SessionParams, TurnName

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
# field of GenerationRequest -> field of this API, used in errors
PARAM_NAMES = {
    "max_tokens": "sampling_params.max_new_tokens",
    "min_tokens": "sampling_params.min_new_tokens",
    "seed": "sampling_params.sampling_seed",
    **{
        name: f"sampling_params.{name}"
        for name in ("n", "stop", "stop_token_ids", "logit_bias", "skip_special_tokens", "regex", "ebnf")
    },
}
V = TypeVar("V")
Start = Annotated[int, Meta(ge=-1, le=LONGEST)]


class SamplingFields(SamplingOptions, kw_only=True, forbid_unknown_fields=True):
    """The field ``sampling_params``.

    Unknown fields are refused: otherwise OpenAI's field names, if sent here by mistake, would silently have no effect.
    """

    max_new_tokens: Index | None = None
    min_new_tokens: Index | None = None
    sampling_seed: Seed | None = None
    spaces_between_special_tokens: bool | None = None
    stream_interval: Index | None = None
    json_schema: str | None = None
    structural_tag: Any = None
    stop_regex: Any = None
    custom_params: Any = None


class GenerateBody(msgspec.Struct, kw_only=True):
    """The body of POST /generate.

    In a batch (a list of strings or of token id lists), other fields may be lists, too.
    """

    text: str | list[str] | None = None
    input_ids: list[Any] | None = None
    sampling_params: SamplingFields | list[SamplingFields] | None = None
    rid: TurnName | list[TurnName] | None = None
    stream: bool | None = None
    return_logprob: bool | list[bool] | None = None
    logprob_start_len: Start | list[Start] | None = None
    top_logprobs_num: NumTop | list[NumTop] | None = None
    return_text_in_logprobs: bool | None = None
    session_id: str | None = None
    session_params: SessionParams | None = None
    priority: Priority | None = None
    cache_salt: CacheSalt | None = None
    extra_key: CacheSalt | None = None
    timeout: Timeout | None = None
    model: str | None = None

    @property
    def names(self) -> tuple[str | None, ...]:
        """The ids by which the client may refer to the request later."""
        return tuple(self.rid) if isinstance(self.rid, list) else (self.rid,)


def prompts_of(body: GenerateBody) -> list[str | list[Any]]:
    """Return the list of prompts. Raises Rejected unless exactly one of ``text`` and ``input_ids`` is set."""
    if (body.text is None) == (body.input_ids is None):
        raise Rejected("Exactly one of 'text' and 'input_ids' must be set.", param="text")
    if body.text is not None:
        listed: list[Any] = [body.text] if isinstance(body.text, str) else body.text
        return _complete(listed, "text")
    ids = body.input_ids or []
    is_batch = bool(ids) and all(isinstance(entry, list) for entry in ids)
    return _complete(ids if is_batch else [ids], "input_ids")


def per_prompt(value: V | list[V] | None, default: V, count: int, param: str) -> list[V]:
    """Return one value per prompt: the single ``value`` for each, or the entries of the list ``value``.

    Raises Rejected if the length of the list differs from ``count``, the number of prompts.
    """
    if not isinstance(value, list):
        return [default if value is None else value] * count
    if len(value) != count:
        raise Rejected(f"'{param}' has {len(value)} entries for {count} prompts.", param=param)
    return value


def generation_request(sampling: SamplingFields, body: GenerateBody) -> GenerationRequest:
    """Convert the parameters of one prompt to a ``GenerationRequest``.

    Raises Rejected if an unsupported field is set.
    """
    for name in REFUSED_SAMPLING:
        if getattr(sampling, name) is not None:
            raise Rejected(f"'{name}' is not supported by this server.", param=f"sampling_params.{name}")
    return GenerationRequest(
        max_tokens=sampling.max_new_tokens,
        min_tokens=sampling.min_new_tokens,
        seed=sampling.sampling_seed,
        cache_salt=body.cache_salt or body.extra_key,
        **{name: getattr(sampling, name) for name in SamplingOptions.__struct_fields__},
    )


def constraint_of(sampling: SamplingFields) -> Constraint | None:
    """Return the constraint on the output; None if there is none.

    Raises Rejected if there is more than one constraint.
    """
    given = [(name, value) for name in CONSTRAINTS if (value := getattr(sampling, name)) is not None]
    if len(given) > 1:
        raise Rejected(f"Only one of {', '.join(CONSTRAINTS)} is allowed.", param=f"sampling_params.{given[1][0]}")
    return CONSTRAINTS[given[0][0]](given[0][1], f"sampling_params.{given[0][0]}") if given else None


def _complete(listed: list[Any], param: str) -> list[Any]:
    if not listed or not all(listed):
        raise Rejected(f"'{param}' is empty or has an empty entry.", param=param)
    return listed
