"""Renders a model's chat template as transformers does, without importing transformers.

Templates come with the model and are not trusted: they run in jinja's sandbox, cannot change their arguments, and have
limits of time and size.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jinja2

from .template_environment import BoundedEnvironment
from .template_limits import RenderLimits

# The names of the field with a message's reasoning. Most templates read the first name, those of gpt-oss the second.
REASONING = ("reasoning_content", "thinking", "reasoning")
OPEN_END = "[[ebbtide continues here]] "  # marks the end of a message that the model continues

Message = dict[str, Any]


class ChatTemplate:
    """The chat templates of one model.

    source: one template, or several by name ("tool_use" for chats with tools, "default" for all others); None if the
        model has no template.
    """

    def __init__(self, source: str | Mapping[str, str] | None) -> None:
        self.source = source
        self._environment = BoundedEnvironment()
        self._templates: dict[str, jinja2.Template] = {}

    def render(
        self,
        messages: list[Message],
        tools: list[dict[str, Any]] | None,
        variables: Mapping[str, Any],
        *,
        add_generation_prompt: bool,
        continue_final_message: bool,
    ) -> str:
        """Return the rendered conversation.

        Raises TemplateLimitError if the template exceeds a limit, jinja's TemplateError, ValueError if there is no
        message or no template or the last message cannot be continued, and any exception that the template's own
        expressions raise.
        """
        source = self._choose(has_tools=tools is not None)
        if not messages:
            raise ValueError("the conversation has no message")
        shown = [_shown(message) for message in messages]
        end = _mark_end(shown[-1], source) if continue_final_message else ""
        with self._environment.limited(RenderLimits([shown, tools, *variables.values()])):
            text = self._compiled(source).render(
                messages=shown,
                tools=tools,
                documents=None,
                add_generation_prompt=add_generation_prompt,
                **variables,
            )
        return _cut_at_mark(text, end) if continue_final_message else text

    def _compiled(self, source: str) -> jinja2.Template:
        if source not in self._templates:
            self._templates[source] = self._environment.from_string(source)
        return self._templates[source]

    def _choose(self, *, has_tools: bool) -> str:
        if isinstance(self.source, str):
            return self.source
        named = self.source or {}
        if has_tools and "tool_use" in named:
            return named["tool_use"]
        if "default" not in named:
            raise ValueError(f"the model has no default chat template, only {', '.join(sorted(named)) or 'none'}")
        return named["default"]


def _shown(message: Message) -> Message:
    """Return a copy without null values, in which the reasoning is under each name that templates read."""
    shown = {key: value for key, value in message.items() if value is not None}
    reasoning = next((shown[name] for name in REASONING if name in shown), None)
    return shown if reasoning is None else {"thinking": reasoning, **shown, "reasoning_content": reasoning}


def _mark_end(message: Message, source: str) -> str:
    """Append ``OPEN_END`` to the content of the message. Returns the content without it."""
    content = message.get("content")
    if not isinstance(content, str):
        raise ValueError("the final message has no content to continue")
    if "content" not in source:
        raise ValueError("the chat template does not read the content of messages")
    message["content"] = content + OPEN_END
    return content


def _cut_at_mark(text: str, content: str) -> str:
    mark = OPEN_END.strip()
    if content.strip() not in text or mark not in text:
        raise ValueError("the chat template does not write the content of the final message")
    at = text.rindex(mark)
    is_whole = text[at : at + len(OPEN_END)] == OPEN_END
    return text[:at] if is_whole else text[:at].rstrip()  # the template has stripped the content's trailing space
