"""The body of a chat request, to which the requests of the other chat-like APIs are translated."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from ...parsers.tool_fields import Tool
from ..generation_request import GenerationRequest, Index, NumTop


class TextPart(msgspec.Struct):
    """One part of a message's content. Only text parts are supported."""

    type: str
    text: str | None = None


class CalledFunction(msgspec.Struct):
    """The function of an earlier tool call.

    Attributes:
        arguments: an object, or a string that contains JSON, as the API returns it
    """

    name: str
    arguments: str | dict[str, Any] | None = None


class MessageCall(msgspec.Struct):
    """A tool call in an assistant message."""

    function: CalledFunction
    id: str | None = None


class ChatMessage(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One message. Unknown keys of a message are ignored."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[TextPart] | None = None
    name: str | None = None
    tool_calls: list[MessageCall] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


class ChatBody(GenerationRequest, kw_only=True):
    """The body of POST /v1/chat/completions."""

    messages: Annotated[list[ChatMessage], Meta(min_length=1)]
    max_completion_tokens: Index | None = None
    logprobs: bool | None = None
    top_logprobs: NumTop | None = None
    reasoning_effort: Effort | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    tools: list[Tool] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    separate_reasoning: bool | None = None
    stream_reasoning: bool | None = None
    include_reasoning: bool | None = None
