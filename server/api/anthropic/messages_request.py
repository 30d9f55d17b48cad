"""The requests of POST /v1/messages and /v1/messages/count_tokens, and their translation to a chat request."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from ebbtide.errors import Rejected

from ...structured.constraints import NamedSchema, ResponseFormat
from ..chat.chat_request import ChatBody, Effort
from ..generation_request import LONGEST, CacheSalt, Index, Priority, Share, Timeout
from .blocks import Message, chat_messages
from .client_tools import OfferedTools
from .errors import THREADS_UNSUPPORTED

# These fields are refused, because ignoring them would change the response. Sessions are not supported by this API.
UNSUPPORTED = ("container", "mcp_servers", "session_id", "session_params")
# field of ChatBody -> field of this API, used in errors
PARAM_NAMES = {
    "stop": "stop_sequences",
    "response_format": "output_config",
    "reasoning_effort": "output_config",
    "chat_template_kwargs": "thinking",
}
TOOL_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


class ToolChoice(msgspec.Struct, kw_only=True):
    """The field ``tool_choice``. ``name`` is used only with the type "tool"."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(msgspec.Struct, kw_only=True):
    """The field ``thinking``.

    The budget has no effect, because reasoning counts as output. With display "omitted" the response contains no
    reasoning.
    """

    type: Literal["enabled", "adaptive", "between_tools", "disabled"]
    budget_tokens: Index | None = None
    display: str | None = None


class OutputFormat(msgspec.Struct, kw_only=True):
    """The field ``output_config.format``."""

    type: Literal["json_schema"]
    schema: Any


class OutputConfig(msgspec.Struct, kw_only=True):
    """The field ``output_config``."""

    effort: Effort | None = None
    format: OutputFormat | None = None


class PromptFields(msgspec.Struct, kw_only=True):
    """The fields that determine the prompt."""

    messages: Annotated[list[Message], Meta(min_length=1)]
    model: str | None = None
    system: str | list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    thread: dict[str, Any] | None = None  # refused


class CountTokensBody(PromptFields, kw_only=True):
    """The body of POST /v1/messages/count_tokens."""


class MessagesBody(PromptFields, kw_only=True):
    """The body of POST /v1/messages. ``rid`` and the fields after it are extensions of this server."""

    max_tokens: Annotated[int, Meta(ge=1, le=LONGEST)]
    metadata: dict[str, Any] | None = None
    service_tier: str | None = None
    stop_sequences: list[str] | None = None
    stream: bool | None = None
    temperature: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_k: Index | None = None
    top_p: Share | None = None
    rid: str | None = None
    request_id: str | None = None
    timeout: Timeout | None = None
    priority: Priority | None = None
    cache_salt: CacheSalt | None = None

    @property
    def names(self) -> tuple[str | None, ...]:
        """The ids by which the client may refer to the request later."""
        return (self.rid, self.request_id)


def check_stateless(body: PromptFields) -> None:
    """Raise Rejected if the request asks to store the conversation or to continue a stored one.

    Anthropic's clients recognize the error code, and then send the whole conversation.
    """
    if body.thread is not None:
        raise Rejected(
            "'thread' is not supported: this server stores no conversations. Send the whole conversation.",
            code=THREADS_UNSUPPORTED,
            param="thread",
        )


def prompt_fields(body: PromptFields, offered: OfferedTools) -> dict[str, Any]:
    """Return the fields of a ``ChatBody`` that determine its prompt.

    Raises Rejected if a message or ``tool_choice`` is invalid.
    """
    messages = chat_messages(body.system, body.messages)
    # If the last message is an assistant message with text, the response continues it.
    begun = messages[-1].role == "assistant" and not messages[-1].tool_calls
    if begun and not messages[-1].content and len(messages) > 1:
        messages.pop()
        begun = False
    return {
        "messages": messages,
        "continue_final_message": True if begun else None,
        "tools": offered.functions or None,
        "tool_choice": _tool_choice(body.tool_choice) if body.tool_choice else None,
        "parallel_tool_calls": False if body.tool_choice and body.tool_choice.disable_parallel_tool_use else None,
        "chat_template_kwargs": _template_switches(body.thinking) if body.thinking else None,
        "include_reasoning": False if body.thinking and body.thinking.display == "omitted" else None,
        "reasoning_effort": body.output_config.effort if body.output_config else None,
    }


def chat_body(body: MessagesBody, offered: OfferedTools) -> ChatBody:
    """Translate the request to a chat request. Raises Rejected if a field is invalid."""
    return ChatBody(
        **prompt_fields(body, offered),
        max_tokens=body.max_tokens,
        response_format=_response_format(body.output_config),
        stop=body.stop_sequences,
        temperature=body.temperature,
        top_k=body.top_k,
        top_p=body.top_p,
        priority=body.priority,
        cache_salt=body.cache_salt,
    )


def _tool_choice(choice: ToolChoice) -> str | dict[str, Any]:
    if choice.type != "tool":
        return TOOL_CHOICES[choice.type]
    if choice.name is None:
        raise Rejected("A 'tool_choice' of type 'tool' needs a 'name'.")
    return {"type": "function", "function": {"name": choice.name}}


def _template_switches(thinking: Thinking) -> dict[str, bool]:
    """Return the template arguments that turn reasoning on or off; templates use either of two names."""
    return dict.fromkeys(("enable_thinking", "thinking"), thinking.type != "disabled")


def _response_format(config: OutputConfig | None) -> ResponseFormat | None:
    if config is None or config.format is None:
        return None
    return ResponseFormat("json_schema", NamedSchema("output", schema=config.format.schema))
