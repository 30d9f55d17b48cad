"""Renders a model's chat template as transformers does, without importing transformers.

Templates come with the model and are not trusted: they run in jinja's sandbox and cannot change their arguments.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import cache
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

# The field names of reasoning in messages. Templates of most models read the first name, those of gpt-oss the second.
REASONING = ("reasoning_content", "thinking", "reasoning")
OPEN_END = "[[ebbtide continues here]] "  # marks the end of a message that the model continues

Message = dict[str, Any]


class ChatTemplate:
    """The templates of one model.

    source: one template, or several by name ("tool_use" is for chats with tools, "default" for all others); None if the
        model has none.
    """

    def __init__(self, source: str | Mapping[str, str] | None) -> None:
        self.source = source

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

        Raises jinja's TemplateError, and ValueError if the last message cannot be continued, or any exception that a
        template's own expressions raise.
        """
        source = self._choose(has_tools=tools is not None)
        if not messages:
            raise ValueError("the conversation has no message")
        shown = [_shown(message) for message in messages]
        end = _mark_end(shown[-1], source) if continue_final_message else ""
        text = _compiled(source).render(
            messages=shown,
            tools=tools,
            documents=None,
            add_generation_prompt=add_generation_prompt,
            **variables,
        )
        return _cut_at_mark(text, end) if continue_final_message else text

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
    """Return a copy without null values, in which the reasoning has all names that templates read."""
    shown = {key: value for key, value in message.items() if value is not None}
    reasoning = next((shown[name] for name in REASONING if name in shown), None)
    return shown if reasoning is None else {"thinking": reasoning, **shown, "reasoning_content": reasoning}


def _mark_end(message: Message, source: str) -> str:
    """Append the mark to the content of the message, and return the content without the mark."""
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
    return text[:at] if is_whole else text[:at].rstrip()  # the template has stripped the content


@cache
def _compiled(source: str) -> jinja2.Template:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlocks, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals |= {
        "raise_exception": _raise_exception,
        "strftime_now": _strftime_now,
        "dict": _Dict(),
        "namespace": _Namespace,
    }
    return environment.from_string(source)


class _GenerationBlocks(Extension):
    """``{% generation %}`` marks the answers of the assistant for training; its text is rendered unchanged."""

    tags = {"generation"}  # noqa: RUF012 - as jinja declares it

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("text_of"), [], [], body).set_lineno(line)

    def text_of(self, caller: Callable[[], str]) -> str:
        return caller()


class _Dict:
    """The ``dict`` that templates call: an instance, because attributes of the class lead out of the sandbox."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args)


class _Namespace(jinja2.utils.Namespace):
    """The ``namespace`` that templates call. It refuses names that start with an underscore."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        self, *given = args
        values = dict(*given, **kwargs)
        for name in values:
            _check_name(name)
        jinja2.utils.Namespace.__init__(self, values)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a chat template cannot store the attribute {name!r} in a namespace")


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


def _strftime_now(layout: str) -> str:
    return datetime.now().strftime(layout)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """The ``tojson`` filter of templates. Unlike jinja's own filter, it does not escape HTML characters."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
