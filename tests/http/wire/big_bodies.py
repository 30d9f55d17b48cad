"""Bodies close to the limits of size and number of elements, one per field that may hold many elements."""

# ruff: noqa: E501  (one shape, one line)

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

ELEMENTS = 480_000  # commas, of at most 500,000
TEXT_BYTES = 31 << 20  # of at most 32 MiB

CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
COMPLETIONS, GENERATE, TOKENIZE = "/v1/completions", "/generate", "/tokenize"

Body = dict[str, Any]


def _nested(depth: int) -> Any:
    value: Any = 1
    for level in range(depth):
        value = {"a": value} if level % 2 else [value]
    return value


def _say(content: Any, role: str = "user") -> list[Body]:
    return [{"role": role, "content": content}]


def _schema(schema: Any) -> Body:
    form = {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}
    return {"messages": _say("x"), "response_format": form}


def _calls(count: int, arguments: str = "{}") -> list[Body]:
    return [{"id": f"c{i}", "function": {"name": "f", "arguments": arguments}} for i in range(count)]


def _tools(count: int) -> list[Body]:
    return [{"type": "function", "function": {"name": f"f{i}", "parameters": {"type": "object"}}} for i in range(count)]


def shapes(elements: int = ELEMENTS, text_bytes: int = TEXT_BYTES) -> Iterator[tuple[str, str, bytes]]:
    """Yield a name, a path and a body of each shape."""
    for name, path, build in _builders(elements, text_bytes):
        yield name, path, json.dumps(build()).encode()


def _builders(n: int, size: int) -> list[tuple[str, str, Callable[[], Body]]]:
    call_item = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    tool_use = {"type": "tool_use", "id": "c", "name": "f", "input": {}}
    image = {"type": "image_url", "image_url": {"url": "data:"}}
    return [
        ("calls in one message", CHAT, lambda: {"messages": [*_say("x"), {"role": "assistant", "tool_calls": _calls(n // 3)}]}),
        ("messages", CHAT, lambda: {"messages": _say("x") * (n // 2)}),
        ("messages with a call each", CHAT, lambda: {"messages": [{"role": "assistant", "tool_calls": _calls(1)}] * (n // 4)}),
        ("text parts", CHAT, lambda: {"messages": _say([{"type": "text", "text": "x"}] * (n // 2))}),
        ("image parts", CHAT, lambda: {"messages": _say([image] * (n // 2))}),
        ("one text", CHAT, lambda: {"messages": _say("x" * size)}),
        ("one text of escapes", CHAT, lambda: {"messages": _say("\u0416" * (size // 6))}),
        ("arguments of many elements", CHAT, lambda: {"messages": [{"role": "assistant", "tool_calls": _calls(1, json.dumps([1] * n))}]}),
        ("deep template options", CHAT, lambda: {"messages": _say("x"), "chat_template_kwargs": {str(i): _nested(120) for i in range(n // 200)}}),
        ("template options", CHAT, lambda: {"messages": _say("x"), "chat_template_kwargs": {str(i): 1 for i in range(n)}}),
        ("logit bias", CHAT, lambda: {"messages": _say("x"), "logit_bias": {str(i): 1 for i in range(n)}}),
        ("stop strings", CHAT, lambda: {"messages": _say("x"), "stop": ["s"] * n}),
        ("stop token ids", COMPLETIONS, lambda: {"prompt": "x", "stop_token_ids": [1] * n}),
        ("tools", CHAT, lambda: {"messages": _say("x"), "tools": _tools(n // 3)}),
        ("properties of a schema", CHAT, lambda: _schema({"type": "object", "properties": {f"p{i}": {} for i in range(n)}})),
        ("values of a schema", CHAT, lambda: _schema({"enum": list(range(n))})),
        ("a deep schema", CHAT, lambda: _schema({"anyOf": [_nested(60)] * (n // 100)})),
        ("unknown fields", CHAT, lambda: {"messages": _say("x"), **{f"u{i}": 1 for i in range(n)}}),
        ("blocks", MESSAGES, lambda: {"max_tokens": 1, "messages": _say([{"type": "text", "text": "x"}] * (n // 2))}),
        ("tool uses", MESSAGES, lambda: {"max_tokens": 1, "messages": _say([tool_use] * (n // 4), "assistant")}),
        ("turns", MESSAGES, lambda: {"max_tokens": 1, "messages": (_say("x") + _say("y", "assistant")) * (n // 4)}),
        ("counted turns", f"{MESSAGES}/count_tokens", lambda: {"messages": _say("x") * (n // 2)}),
        ("call items", RESPONSES, lambda: {"input": [call_item] * (n // 4)}),
        ("message items", RESPONSES, lambda: {"input": _say("x") * (n // 2)}),
        ("item parts", RESPONSES, lambda: {"input": _say([{"type": "input_text", "text": "x"}] * (n // 2))}),
        ("prompts", COMPLETIONS, lambda: {"prompt": ["x"] * n}),
        ("token ids", COMPLETIONS, lambda: {"prompt": [65] * n}),
        ("lists of token ids", COMPLETIONS, lambda: {"prompt": [[65] * (n // 1024)] * 1024, "max_tokens": 1}),
        ("one prompt", COMPLETIONS, lambda: {"prompt": "x" * size}),
        ("input ids", GENERATE, lambda: {"input_ids": [[65]] * n}),
        ("sampling parameters", GENERATE, lambda: {"text": ["x"] * (n // 4), "sampling_params": [{"top_k": 1}] * (n // 4)}),
        ("texts to tokenize", TOKENIZE, lambda: {"prompt": ["x"] * n}),
        ("messages to tokenize", TOKENIZE, lambda: {"messages": _say("x") * (n // 2)}),
        ("tokens", "/detokenize", lambda: {"tokens": [65] * n}),
        ("lists of tokens", "/detokenize", lambda: {"tokens": [[65] * (n // 1024)] * 1024}),
        ("embedded texts", "/v1/embeddings", lambda: {"input": ["x"] * n}),
        ("ids to abort", "/abort_request", lambda: {"rid": ["x"] * n}),
    ]  # fmt: skip
