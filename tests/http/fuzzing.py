"""Malformed and extreme requests: valid bodies of every route with random changes, determined by a seed."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

Body = dict[str, Any]

SAY = [{"role": "user", "content": "hi"}]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}

# Every route that takes a body and does not affect other requests, with bodies that it accepts.
VALID: dict[str, list[Body]] = {
    "/v1/chat/completions": [
        {"messages": SAY, "max_tokens": 3, "temperature": 0},
        {"messages": SAY, "max_tokens": 2, "stream": True, "stream_options": {"include_usage": True}},
        {"messages": SAY, "max_tokens": 2, "logprobs": True, "top_logprobs": 2, "n": 2, "seed": 3},
        {"messages": SAY, "max_tokens": 4, "tools": [TOOL], "tool_choice": "required"},
        {
            "messages": SAY,
            "max_tokens": 4,
            "response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA}},
        },
        {"messages": SAY, "max_tokens": 4, "regex": "[ab]+", "stop": ["x", "yz"], "min_tokens": 1},
    ],
    "/v1/completions": [
        {"prompt": "hi", "max_tokens": 3},
        {"prompt": ["a", "b"], "max_tokens": 2, "n": 2, "stream": True},
        {"prompt": [[1, 2, 3]], "max_tokens": 0, "echo": True, "logprobs": 1},
        {"prompt": "hi", "max_tokens": 3, "logit_bias": {"65": 5}, "presence_penalty": 0.5, "prompt_logprobs": 1},
    ],
    "/generate": [
        {"text": "hi", "sampling_params": {"max_new_tokens": 3, "temperature": 0}},
        {"input_ids": [[1, 2], [3]], "sampling_params": {"max_new_tokens": 2}, "return_logprob": True},
        {"text": "hi", "sampling_params": {"max_new_tokens": 2}, "stream": True},
    ],
    "/v1/responses": [
        {"input": "hi", "max_output_tokens": 16},
        {"input": SAY, "max_output_tokens": 16, "stream": True},
    ],
    "/v1/messages": [
        {"messages": SAY, "max_tokens": 3, "model": "sim"},
        {"messages": SAY, "max_tokens": 3, "model": "sim", "stream": True, "system": "be brief"},
    ],
    "/v1/messages/count_tokens": [{"messages": SAY, "model": "sim"}],
    "/tokenize": [{"prompt": "hi"}, {"messages": SAY}],
    "/detokenize": [{"tokens": [65, 66]}],
    "/v1/chat/completions/render": [{"messages": SAY, "max_tokens": 3}],
    "/v1/completions/render": [{"prompt": ["hi", "ho"], "max_tokens": 3}],
    "/v1/embeddings": [{"input": "hi"}],
    "/v1/sessions": [{"timeout": 1}],
    "/open_session": [{"capacity_of_str_len": 10, "timeout": 1}],
    "/close_session": [{"session_id": "none"}],
    "/abort_request": [{"rid": "nobody"}],
}
READ = [
    "/v1/models",
    "/v1/models/sim",
    "/v1/sessions",
    "/v1/loads",
    "/get_load",
    "/tokenizer_info",
    "/pressure",
    "/health",
    "/ready",
    "/metrics",
    "/version",
]

NASTY: list[Any] = [
    None, True, False, 0, -1, 1, 2, 1.5, -0.0, 1e-320, 1e308, 2**31, 2**63, -(2**63) - 1, 10**30, "", " ", "a",
    "0", "-1",
    "NaN", "null", "\x00", "\ud7ff", "\u2028\u2029\u0085", "🌊" * 50, "é" * 3, "x" * 3000, "<|end|>",
    "<|im_start|>", "{{7*7}}",
    "../../etc/passwd", "'; drop table", "\r\nX: y", [], [[]], [None], [1, "a"], [-1], [99999999], [[1], "a"],
    ["a"] * 200, {},
    {"a": 1}, {"type": "text"}, {"type": []}, {"role": "user"}, [{"role": "root", "content": "x"}], {"": {}}, [{}],
]  # fmt: skip
LITERALS = [
    b"NaN",
    b"Infinity",
    b"-Infinity",
    b"1e999",
    b"01",
    b"1_000",
    b"'a'",
    b'"\\ud800"',
    b'"\\x"',
    b"tru",
    b"9" * 5000,
]
EXTRA = [
    "n", "stop", "seed", "logprobs", "top_logprobs", "logit_bias", "stream", "stream_options", "tools",
    "tool_choice", "response_format", "regex", "ebnf", "grammar", "structured_outputs", "guided_json",
    "session_id", "session_params", "priority", "cache_salt", "rid", "request_id", "echo", "suffix",
    "best_of", "prompt_logprobs", "min_tokens", "stop_token_ids", "ignore_eos", "chat_template_kwargs",
    "chat_template", "reasoning_effort", "continue_final_message", "add_generation_prompt", "return_token_ids",
    "parallel_tool_calls", "metadata", "user", "model", "temperature", "top_p", "top_k", "min_p",
    "repetition_penalty", "frequency_penalty", "max_tokens", "max_completion_tokens", "messages", "prompt",
]  # fmt: skip


@dataclass
class Shot:
    """One request as it is sent."""

    method: str
    path: str
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=lambda: {"content-type": "application/json"})


def shot(seed: int) -> Shot:
    """The request of this seed."""
    rng = random.Random(seed)
    path = rng.choice(list(VALID))
    body = json.loads(json.dumps(rng.choice(VALID[path])))
    for _ in range(rng.choice([0, 1, 1, 1, 2, 3])):
        rng.choice([_replace, _replace, _replace, _add, _remove, _deepen])(rng, body)
    made = Shot("POST", path, json.dumps(body).encode())
    if rng.random() < 0.35:
        rng.choice(BREAKS)(rng, made)
    return made


def _places(value: Any) -> list[tuple[Any, Any]]:
    """(container, key) of every value inside."""
    keys = value.keys() if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    return [(value, key) for key in keys] + [place for key in keys for place in _places(value[key])]


def _replace(rng: random.Random, body: Body) -> None:
    places = _places(body)
    if places:
        container, key = rng.choice(places)
        container[key] = copy.deepcopy(rng.choice(NASTY))


def _add(rng: random.Random, body: Body) -> None:
    body[rng.choice(EXTRA)] = copy.deepcopy(rng.choice(NASTY))


def _remove(rng: random.Random, body: Body) -> None:
    if body:
        del body[rng.choice(list(body))]


def _deepen(rng: random.Random, body: Body) -> None:
    deep: Any = copy.deepcopy(rng.choice(NASTY))
    for _ in range(rng.choice([3, 60, 65, 127, 150])):
        deep = {"a": deep} if rng.random() < 0.5 else [deep]
    body[rng.choice([*EXTRA, *body])] = deep


def _cut(rng: random.Random, made: Shot) -> None:
    made.body = made.body[: rng.randrange(len(made.body))]


def _spoil(rng: random.Random, made: Shot) -> None:
    spoilt = bytearray(made.body)
    for _ in range(rng.choice([1, 3, 20])):
        spoilt[rng.randrange(len(spoilt))] = rng.randrange(256)
    made.body = bytes(spoilt)


def _noise(rng: random.Random, made: Shot) -> None:
    made.body = rng.choice(
        [b"", b"null", b"[]", b"0", b'"x"', rng.randbytes(rng.choice([1, 50, 5000])), b"[" * 100_000]
    )


def _literal(rng: random.Random, made: Shot) -> None:
    made.body = made.body[:-1] + b', "' + rng.choice(EXTRA).encode() + b'": ' + rng.choice(LITERALS) + b"}"


def _twice(rng: random.Random, made: Shot) -> None:
    made.body = made.body[:-1] + b", " + made.body[1:]


def _header(rng: random.Random, made: Shot) -> None:
    name = rng.choice(
        ["content-type", "x-request-id", "authorization", "x-session-id", "accept", "x-api-key", "traceparent"]
    )
    made.headers[name] = rng.choice(
        ["", "text/plain", "application/json; charset=latin1", "a" * 4000, "Bearer", "Bearer x y", "\x01"]
    )


def _method(rng: random.Random, made: Shot) -> None:
    made.method = rng.choice(["GET", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD", "BREW"])


def _path(rng: random.Random, made: Shot) -> None:
    made.path = rng.choice(
        [*READ, made.path + "/", made.path + "/%00", "/" + "a" * 3000, "//", "/%2e%2e/", made.path + "?x=%ff&y"]
    )
    made.method = rng.choice(["GET", "GET", "POST"])


BREAKS: list[Callable[[random.Random, Shot], None]] = [
    _cut, _spoil, _noise, _literal, _twice, _header, _method, _path,
]  # fmt: skip
