"""From the body of a chat request to the conversation that the model's template renders."""

from __future__ import annotations

from typing import Any

from ebbtide.errors import Rejected
from ebbtide.tokenizer import ChatPrompt

from .fields import ChatBody, ChatMessage


def chat_prompt(body: ChatBody) -> ChatPrompt:
    """The conversation that a body asks to go on with. Raises Rejected."""
    continues = bool(body.continue_final_message)
    if continues and body.add_generation_prompt:
        raise Rejected(
            "'continue_final_message' and 'add_generation_prompt' exclude each other.", param="continue_final_message"
        )
    if continues and body.messages[-1].role != "assistant":
        raise Rejected("'continue_final_message' needs an assistant message at the end.", param="messages")
    options = dict(body.chat_template_kwargs or {})
    if "chat_template" in options:
        raise Rejected("A chat template cannot be sent with a request.", param="chat_template_kwargs")
    if body.reasoning_effort is not None:
        options["reasoning_effort"] = body.reasoning_effort
    return ChatPrompt(
        messages=[_plain(message, index) for index, message in enumerate(body.messages)],
        add_generation_prompt=not continues and body.add_generation_prompt is not False,
        continue_final_message=continues,
        template_kwargs=options,
    )


def _plain(message: ChatMessage, index: int) -> dict[str, Any]:
    """The message as templates expect it: text content, and "system" for the newer name of that role."""
    plain = {
        "role": "system" if message.role == "developer" else message.role,
        "content": _text(message, index),
    }
    for key in ("name", "tool_calls", "tool_call_id", "reasoning_content"):
        value = getattr(message, key)
        if value is not None:
            plain[key] = value
    return plain


def _text(message: ChatMessage, index: int) -> str:
    if message.content is None or isinstance(message.content, str):
        return message.content or ""
    texts = []
    for number, part in enumerate(message.content):
        if part.type != "text" or part.text is None:
            raise Rejected(
                f"Content parts of type {part.type[:50]!r} are not supported: this model reads text.",
                param=f"messages[{index}].content[{number}]",
            )
        texts.append(part.text)
    return "".join(texts)
