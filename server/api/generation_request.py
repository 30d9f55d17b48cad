"""The fields of a request that generates text, independent of the API. OpenAI's request types extend these fields; the
requests of other APIs are translated to them. These classes check only the types and ranges of the fields.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from ..structured.constraints import ResponseFormat, StructuredOutputs
from .session_params import SessionParams

Penalty = Annotated[float, Meta(ge=-2, le=2)]
Share = Annotated[float, Meta(ge=0, le=1)]
RepetitionPenalty = Annotated[float, Meta(ge=0.001, le=2)]  # smaller values would make logits infinite
LONGEST = 2**63 - 1  # the largest integer in messages to the engine, and therefore the limit in request bodies
Index = Annotated[int, Meta(ge=0, le=LONGEST)]
NumTop = Annotated[int, Meta(ge=0, le=20)]  # number of alternatives per token
TopK = Annotated[int, Meta(ge=-1, le=LONGEST)]
Temperature = Annotated[float, Meta(ge=0, le=2)]
Seed = Annotated[int, Meta(ge=-LONGEST - 1, le=LONGEST)]
Priority = Annotated[int, Meta(ge=-100, le=100)]
CacheSalt = Annotated[str, Meta(min_length=1, max_length=256)]
Timeout = Annotated[float, Meta(gt=0)]  # seconds


class StreamOptions(msgspec.Struct):
    """Options of a stream."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class SamplingOptions(msgspec.Struct, kw_only=True):
    """The fields that have the same name and meaning in OpenAI's and SGLang's requests.

    A field with the value null is treated like an absent field.
    """

    temperature: Temperature | None = None
    top_p: Share | None = None
    top_k: TopK | None = None
    min_p: Share | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: RepetitionPenalty | None = None
    logit_bias: dict[str, Annotated[float, Meta(ge=-100, le=100)]] | None = None
    n: Annotated[int, Meta(ge=1, le=128)] | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[Index] | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    no_stop_trim: bool | None = None
    regex: str | None = None
    ebnf: str | None = None


class GenerationRequest(SamplingOptions, kw_only=True):
    """One request to generate text, without its prompt."""

    model: str | None = None
    max_tokens: Index | None = None
    min_tokens: Index | None = None
    seed: Seed | None = None
    include_stop_str_in_output: bool | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    grammar: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    priority: Priority | None = None
    cache_salt: CacheSalt | None = None
    session_id: str | None = None
    session_params: SessionParams | None = None
    rid: str | None = None
    request_id: str | None = None
    timeout: Timeout | None = None
    prompt_logprobs: NumTop | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None

    @property
    def names(self) -> tuple[str | None, ...]:
        """The ids by which the client may refer to the request later."""
        return (self.rid, self.request_id)

    @property
    def namespace(self) -> str:
        """The prefix cache namespace of the request. The prefix "salt:" distinguishes it from other namespaces."""
        return f"salt:{self.cache_salt}" if self.cache_salt else ""
