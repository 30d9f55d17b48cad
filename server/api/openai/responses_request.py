"""The request of POST /v1/responses, and its translation to a chat request."""

from __future__ import annotations

from typing import Annotated, Any, Literal, cast, get_args

import msgspec
from msgspec import Meta

from ebbtide.errors import Rejected

from ...structured.constraints import MAX_NAME, NamedSchema, ResponseFormat
from ..chat.chat_request import ChatBody, Effort
from ..generation_request import LONGEST, CacheSalt, NumTop, Priority, Seed, Share, Temperature, Timeout, TopK
from .responses_items import chat_messages, tools_of
from .responses_tools import OfferedTools

MAX_METADATA = 16
# These fields are refused, because ignoring them would change the response.
CHAT_ONLY = ("messages", "max_tokens", "max_completion_tokens", "response_format", "reasoning_effort", "functions")
SAMPLING = ("n", "stop", "logit_bias", "presence_penalty", "frequency_penalty", "logprobs")
NOT_STORED = ("conversation", "prompt", "context_management")
SESSIONS = ("session_id", "session_params")  # fields of other APIs that this API does not support
UNSUPPORTED = (*CHAT_ONLY, *SAMPLING, *NOT_STORED, *SESSIONS)
# field of ChatBody -> field of this API, used in errors
PARAM_NAMES = {
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "response_format": "text",
    "reasoning_effort": "reasoning",
    "logprobs": "include",
}
LOGPROBS = "message.output_text.logprobs"
Include = Literal[
    "message.output_text.logprobs",
    "reasoning.encrypted_content",
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
]


class TextFormat(msgspec.Struct):
    """The field ``text.format``. Its fields other than ``type`` apply to the type json_schema only."""

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    schema: Any = None
    description: str | None = None
    strict: bool | None = None


class TextOptions(msgspec.Struct):
    """The field ``text``. ``verbosity`` has no effect."""

    format: TextFormat | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class ReasoningOptions(msgspec.Struct):
    """The field ``reasoning``. The response contains the reasoning itself and no summary."""

    effort: str | None = None
    summary: str | None = None
    generate_summary: str | None = None


class ResponseStreamOptions(msgspec.Struct):
    """The field ``stream_options``. Obfuscation is accepted and has no effect."""

    include_obfuscation: bool | None = None


class ResponsesBody(msgspec.Struct, kw_only=True):
    """The body of POST /v1/responses. ``rid`` and the fields after it are extensions of this server."""

    input: Annotated[str, Meta(min_length=1)] | Annotated[list[dict[str, Any]], Meta(min_length=1)]
    model: str | None = None
    instructions: str | None = None
    max_output_tokens: Annotated[int, Meta(ge=1, le=LONGEST)] | None = None
    max_tool_calls: Annotated[int, Meta(ge=1, le=LONGEST)] | None = None
    temperature: Temperature | None = None
    top_p: Share | None = None
    top_logprobs: NumTop | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    text: TextOptions | None = None
    reasoning: ReasoningOptions | None = None
    metadata: Annotated[dict[str, str], Meta(max_length=MAX_METADATA)] | None = None
    store: bool | None = None
    stream: bool | None = None
    stream_options: ResponseStreamOptions | None = None
    truncation: Literal["auto", "disabled"] | None = None
    include: list[Include] | None = None
    previous_response_id: str | None = None
    background: bool | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    service_tier: str | None = None
    rid: str | None = None
    request_id: str | None = None
    timeout: Timeout | None = None
    seed: Seed | None = None
    top_k: TopK | None = None
    priority: Priority | None = None
    cache_salt: CacheSalt | None = None

    @property
    def names(self) -> tuple[str | None, ...]:
        """The ids by which the client may refer to the request later."""
        return (self.rid, self.request_id)

    @property
    def shows_logprobs(self) -> bool:
        """True if log-probabilities are requested, by either of the two fields."""
        return self.top_logprobs is not None or LOGPROBS in (self.include or ())


def offered_tools(body: ResponsesBody) -> OfferedTools:
    """Return the tools of the request as functions, including those that input items define.

    Raises Rejected if a tool is invalid.
    """
    offered = OfferedTools(body.tools)
    for path, tools in tools_of(body.input).items():
        offered.add_found(tools, path)
    return offered


def chat_body(body: ResponsesBody, offered: OfferedTools) -> ChatBody:
    """Translate the request to a chat request. Raises Rejected if a field is invalid."""
    return ChatBody(
        messages=chat_messages(body.instructions, body.input, offered),
        max_tokens=body.max_output_tokens,
        temperature=body.temperature,
        top_p=body.top_p,
        logprobs=body.shows_logprobs or None,
        top_logprobs=body.top_logprobs,
        tools=offered.functions or None,
        tool_choice=offered.choice(body.tool_choice),
        parallel_tool_calls=body.parallel_tool_calls,
        response_format=_response_format(body.text),
        reasoning_effort=_effort(body.reasoning),
        seed=body.seed,
        top_k=body.top_k,
        priority=body.priority,
        cache_salt=body.cache_salt,
    )


def check_stateless(body: ResponsesBody) -> None:
    """Raise Rejected if the request needs stored responses, or sets stream options without a stream."""
    if body.previous_response_id is not None:
        raise Rejected(
            "This server stores no responses: send the whole conversation as 'input' instead of"
            " 'previous_response_id'.",
            status=404,
            kind="not_found_error",
            code="previous_response_not_found",
            param="previous_response_id",
        )
    if body.background:
        raise Rejected("'background' is not supported: this server stores no responses.", param="background")
    if body.stream_options and body.stream_options.include_obfuscation and not body.stream:
        raise Rejected("'stream_options' is only allowed together with 'stream': true.", param="stream_options")


def _effort(reasoning: ReasoningOptions | None) -> Effort | None:
    if reasoning is None or reasoning.effort is None:
        return None
    if reasoning.effort not in get_args(Effort):
        raise Rejected(f"'reasoning.effort' must be one of {', '.join(get_args(Effort))}.", param="reasoning")
    return cast("Effort", reasoning.effort)


def _response_format(text: TextOptions | None) -> ResponseFormat | None:
    form = text.format if text else None
    if form is None or form.type != "json_schema":
        return None if form is None else ResponseFormat(form.type)
    if form.name is not None and not 1 <= len(form.name) <= MAX_NAME:
        raise Rejected(f"'text.format.name' must have 1 to {MAX_NAME} characters.", param="text")
    return ResponseFormat(form.type, NamedSchema(form.name, form.description, form.schema, form.strict))
