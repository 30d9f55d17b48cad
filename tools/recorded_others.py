"""Recorded requests of the routes that are not OpenAI's, of malformed HTTP, and of sessions."""

from __future__ import annotations

from typing import Any

from recorded_cases import JSON, Ask, cases, each_value, get, post, whole_and_streamed
from recorded_openai import CHAT, CHATTING, COMPLETION, COMPLETIONS, RESPONDING, RESPONSES, SCHEMA, TOOLS, USER

GENERATE, MESSAGES, COUNT = "/generate", "/v1/messages", "/v1/messages/count_tokens"
SAMPLING = {"max_new_tokens": 10, "temperature": 0, "ignore_eos": True}
GENERATING = {"text": "tide", "sampling_params": SAMPLING}
SAYING = {"messages": USER, "max_tokens": 10, "temperature": 0}
TOOL = {"name": "weather", "description": "Looks.", "input_schema": SCHEMA}


def sampled(**fields: Any) -> dict[str, Any]:
    """Sampling fields over the usual ones."""
    return {"sampling_params": {**SAMPLING, **fields}}


GENERATE_CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "ids": {"text": None, "input_ids": [116, 105]},
    "batch": {"text": ["one", "two"]},
    "batch of ids": {"text": None, "input_ids": [[65], [66, 67]], "rid": ["first", "second"]},
    "n": sampled(n=2, temperature=1, sampling_seed=3),
    "own id": {"rid": "mine"},
    "logprobs": {"return_logprob": True},
    "logprobs of all": {"return_logprob": True, "logprob_start_len": 0, "top_logprobs_num": 2},
    "logprobs with text": {"return_logprob": True, "logprob_start_len": 2, "return_text_in_logprobs": True},
    "logprobs of a batch": {"text": ["a", "b"], "return_logprob": [True, False], "top_logprobs_num": [1, 0]},
    "batch of sampling": {"text": ["a", "b"], "sampling_params": [SAMPLING, {**SAMPLING, "max_new_tokens": 3}]},
    "stop": sampled(stop=["T|"]),
    "stop kept": sampled(stop="T|", no_stop_trim=True),
    "stop ids": sampled(stop_token_ids=[73]),
    "penalties": sampled(presence_penalty=1, frequency_penalty=1, repetition_penalty=1.5),
    "min tokens": sampled(min_new_tokens=4, ignore_eos=False, stop=["|"]),
    "regex": sampled(regex="[a-c]{3}"),
    "ebnf": sampled(ebnf='root ::= "a" "b"'),
    "json_schema": sampled(json_schema='{"type": "integer", "minimum": 10, "maximum": 99}'),
    "top": sampled(top_k=5, top_p=0.5, min_p=0.1, temperature=1, sampling_seed=2),
    "salt": {"extra_key": "k", "priority": 3},
    "no sampling": {"sampling_params": sampled(ignore_eos=True)["sampling_params"] | {"max_new_tokens": 1}},
}
MESSAGE_CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "one token": {"max_tokens": 1},
    "system": {"system": "be brief", "metadata": {"user_id": "u"}},
    "blocks": {
        "system": [{"type": "text", "text": "be"}],
        "messages": [
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "a"},
                    {"type": "text", "text": "b", "cache_control": {"type": "ephemeral"}},
                ],
            }
        ],
    },
    "begun": {"messages": [*USER, {"role": "assistant", "content": "be"}]},
    "stop": {"stop_sequences": ["a", "e", "i", "t", "T", "|", "1", "2"], "max_tokens": 200},
    "tools any": {"tools": [TOOL], "tool_choice": {"type": "any"}, "max_tokens": 200},
    "tools named": {"tools": [TOOL], "tool_choice": {"type": "tool", "name": "weather"}, "max_tokens": 200},
    "tools auto": {"tools": [TOOL], "tool_choice": {"type": "auto", "disable_parallel_tool_use": True}},
    "tool results": {
        "tools": [TOOL],
        "messages": [
            *USER,
            {
                "role": "assistant",
                "content": [{"type": "tool_use", "id": "t", "name": "weather", "input": {"city": "x"}}],
            },
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "sun"}]},
        ],
    },
    "thinking": {"thinking": {"type": "enabled", "budget_tokens": 1024}},
    "schema": {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}, "max_tokens": 90},
}
BAD_GENERATE: dict[str, list[Any]] = {
    "text": [None, "", [], [""], 5, "x" * 5000],
    "input_ids": [[1]],
    "sampling_params": [
        {"max_tokens": 1},
        {"max_new_tokens": -1},
        {"n": 0},
        {"regex": "a", "ebnf": "b"},
        "x",
        {"stop_regex": "a"},
        {"temperature": 3},
        {"max_new_tokens": 0},
        {"json_schema": "{"},
        [{}, {}],
    ],
    "rid": [["a", "b"], 5, ""],
    "return_logprob": [[True, False], "x"],
    "top_logprobs_num": [21],
    "logprob_start_len": [-2, 99],
    "image_data": ["x"],
    "lora_path": ["x"],
    "return_hidden_states": [True],
    "priority": [101],
    "model": ["nobody"],
    "session_params": [{"id": "nobody"}, {"rid": "x"}],
    "session_id": ["nobody"],
}
BAD_MESSAGES: dict[str, list[Any]] = {
    "messages": [
        None,
        [],
        "x",
        [{"role": "tool", "content": "a"}],
        [{"role": "user", "content": [{"type": "image", "source": {}}]}],
        [{"role": "user", "content": [{"type": "tool_result"}]}],
        [{"role": "assistant", "content": [{"type": "tool_use", "id": "a"}]}],
        [{"role": "user", "content": [{"type": "text"}]}],
        [{"role": "user", "content": "x" * 5000}],
    ],
    "max_tokens": [None, 0, "x", 100_000],
    "temperature": [1.5],
    "tools": [[{"name": "a"}], [{"name": "a", "type": "bash_20250124"}]],
    "tool_choice": [{"type": "tool"}, {"type": "x"}, {"type": "any"}],
    "thinking": [{"type": "x"}],
    "container": ["x"],
    "session_id": ["x"],
    "model": ["nobody"],
    "stop_sequences": [[""], "x"],
}
TOKENIZE_CASES: dict[str, dict[str, Any]] = {
    "text": {"prompt": "tide 🌊"},
    "texts": {"prompt": ["a", "bc"], "return_token_strs": True},
    "no marks": {"prompt": "a", "add_special_tokens": False},
    "chat": {"messages": USER, "return_token_strs": True},
    "chat with tools": {"messages": USER, "tools": TOOLS, "add_generation_prompt": False},
    "nothing": {},
    "both": {"prompt": "a", "messages": USER},
    "empty": {"prompt": ""},
    "none": {"prompt": []},
    "wrong": {"prompt": 5},
    "unknown model": {"prompt": "a", "model": "nobody"},
    "chat only": {"prompt": "a", "tools": TOOLS},
    "marks of a chat": {"messages": USER, "add_special_tokens": True},
}
DETOKENIZE_CASES: dict[str, dict[str, Any]] = {
    "ids": {"tokens": [116, 105]},
    "lists": {"tokens": [[65], [66]]},
    "half": {"tokens": [240, 159]},
    "special": {"tokens": [65, 256]},
    "special shown": {"tokens": [65, 256], "skip_special_tokens": False},
    "none": {"tokens": []},
    "out of range": {"tokens": [260]},
    "wrong": {"tokens": ["a"]},
    "missing": {},
}
MALFORMED: dict[str, bytes] = {
    "empty": b"",
    "no JSON": b"{",
    "list": b"[]",
    "not UTF-8": b'{"prompt": "\xff"}',
    "twice": b'{"a": 1, "a": 2}',
    "NaN": b'{"a": NaN}',
    "huge number": b'{"a": 1e999}',
    "many digits": b'{"a": ' + b"1" * 5000 + b"}",
    "deep": b'{"a": ' + b"[" * 200 + b"]" * 200 + b"}",
    "very deep": b'{"a": ' + b"[" * 20_000 + b"}",
    "surrogate": b'{"a": "\\ud800"}',
    "no fields": b"{}",
}
BODIES = (
    COMPLETIONS,
    CHAT,
    RESPONSES,
    MESSAGES,
    COUNT,
    GENERATE,
    "/tokenize",
    "/detokenize",
    "/v1/sessions",
    "/open_session",
    "/close_session",
    "/abort_request",
    "/pause_generation",
)
PROBES = (
    "/health",
    "/ready",
    "/health_generate",
    "/v1/models",
    "/v1/models/sim",
    "/v1/models/org/nobody",
    "/server_info",
    "/get_server_info",
    "/model_info",
    "/get_model_info",
    "/version",
    "/v1/sessions",
    "/v1/sessions/nobody",
    "/v1/sessions/a%20b",
    "/v1/responses/resp_1",
    "/openapi.json",
    "/docs",
    "/nowhere",
    "/v1/messages/nowhere",
    "/v1/completions",
    "/v1/completions/",
    "/flush_cache",
    "/flush_cache?timeout=-1",
    "/flush_cache?timeout=x",
    "/flush_cache?timeout=0.1",
)
LATE_PROBES = (
    "/v1/loads",
    "/v1/loads?include=core",
    "/v1/loads?include=memory,queues",
    "/v1/loads?include=nothing",
    "/v1/loads?format=prometheus",
    "/v1/loads?format=xml",
    "/pressure",
    "/metrics",
)


def dialect_asks() -> list[Ask]:
    """The other APIs."""
    good = {name: fields for name, fields in GENERATE_CASES.items() if "batch" not in name}
    batches = {name: fields for name, fields in GENERATE_CASES.items() if "batch" in name}
    short = {**GENERATING, **sampled(max_new_tokens=1), "stream": True}
    return [
        *whole_and_streamed(GENERATE, GENERATING, good),
        *cases(GENERATE, GENERATING, batches),
        post("batch (stream)", GENERATE, {**GENERATING, "text": ["one", "two"], "stream": True}),
        post("one token exactly", GENERATE, {**short, "rid": "exact"}, exact=True),
        *whole_and_streamed(MESSAGES, SAYING, MESSAGE_CASES),
        post("one token exactly", MESSAGES, {**SAYING, "max_tokens": 1, "stream": True}, exact=True),
        *cases(
            COUNT,
            {"messages": USER},
            {
                "plain": {},
                "tools": {"tools": [TOOL]},
                "system": {"system": "x"},
                "wrong": {"messages": 5},
                "unknown model": {"model": "nobody"},
            },
        ),
        *each_value(GENERATE, GENERATING, BAD_GENERATE),
        *each_value(MESSAGES, SAYING, BAD_MESSAGES),
        *(ask for path in ("/tokenize", "/v1/tokenize") for ask in cases(path, {}, TOKENIZE_CASES)),
        *(ask for path in ("/detokenize", "/v1/detokenize") for ask in cases(path, {}, DETOKENIZE_CASES)),
    ]


def plain_asks() -> list[Ask]:
    """Probes, wrong methods, malformed bodies and malformed HTTP."""
    heads = [Ask(f"HEAD {path}", "HEAD", path) for path in ("/health", "/v1/models", "/nowhere", "/v1/completions")]
    wrong = [
        Ask(f"{method} {path}", method, path)
        for method in ("PUT", "DELETE", "PATCH", "OPTIONS")
        for path in ("/v1/completions", "/v1/models", "/v1/messages", "/nowhere")
    ]
    bodies = [
        Ask(f"{path} body: {name}", "POST", path, body, JSON)
        for path in BODIES
        for name, body in MALFORMED.items()
        if not (path == "/pause_generation" and name in ("empty", "no fields"))
        and not (path == "/v1/sessions" and name in ("empty", "no fields"))
    ]
    kinds = [
        Ask(f"content {key}: {value}", "POST", COMPLETIONS, b"{}", {**JSON, key: value})
        for key, value in (
            ("content-type", "text/plain"),
            ("content-type", "application/x+json"),
            ("content-type", "application/json; charset=utf-8"),
            ("content-encoding", "gzip"),
        )
    ]
    named = [
        post(f"header id {name!r}", COMPLETIONS, {**COMPLETION, "max_tokens": 1}, headers={"x-request-id": name})
        for name in ("mine", "not good", "x" * 129)
    ]
    stored = [
        Ask(f"{method} {path}", method, path)
        for method, path in (
            ("DELETE", "/v1/responses/resp_1"),
            ("POST", "/v1/responses/resp_1/cancel"),
            ("POST", "/v1/embeddings"),
            ("POST", "/flush_cache"),
        )
    ]
    return [*map(get, PROBES), *heads, *wrong, *bodies, *kinds, *named, *stored, *_raw()]


def late_asks() -> list[Ask]:
    """What counts the requests before."""
    return [get(path, settles=True) for path in LATE_PROBES]


def _raw() -> list[Ask]:
    lines = {
        "no HTTP": b"hello\r\n\r\n",
        "bad length": b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: -5\r\n\r\n",
        "HTTP/1.0": b"GET /health HTTP/1.0\r\n\r\n",
        "absolute": b"GET http://x/health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n",
        "odd method": b"BREW /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n",
    }
    return [Ask(f"raw: {name}", "RAW", "", raw=raw) for name, raw in lines.items()]


def session_asks() -> list[Ask]:
    """Sessions in both forms, and their turns over every route that takes them."""
    steps: list[Ask] = [
        post("open", "/v1/sessions", {"session_id": "s1"}),
        post("open again", "/v1/sessions", {"session_id": "s1"}),
        post("open unnamed", "/v1/sessions", {}),
        post("open plain", "/v1/sessions", {"session_id": "p1", "streaming": False, "timeout": 50}),
        *cases(
            "/v1/sessions",
            {},
            {"bad id": {"session_id": "a b"}, "bad timeout": {"timeout": 0}, "dots": {"session_id": ".."}},
        ),
        post("open", "/open_session", {"capacity_of_str_len": 1000, "session_id": "g1", "streaming": True}),
        post("open, no capacity", "/open_session", {"session_id": "g2"}),
        post("open again", "/open_session", {"capacity_of_str_len": 1, "session_id": "g1"}),
        get("/v1/sessions/s1", name="s1 before its turns"),
    ]
    for turn in range(3):
        body = {**COMPLETION, "prompt": f"turn {turn}", "session_id": "s1", "return_token_ids": True}
        steps.append(post(f"s1 turn {turn}", COMPLETIONS, body))
        steps.append(get("/v1/sessions/s1", name=f"s1 after turn {turn}", settles=True))
    steps += [
        post("s1 turn streamed", COMPLETIONS, {**COMPLETION, "session_id": "s1", "stream": True}),
        post("s1 chat turn", CHAT, {**CHATTING, "session_id": "s1"}),
        post("s1 n", COMPLETIONS, {**COMPLETION, "session_id": "s1", "n": 2}),
        post("s1 two prompts", COMPLETIONS, {**COMPLETION, "session_id": "s1", "prompt": ["a", "b"]}),
        post("s1 echo", COMPLETIONS, {**COMPLETION, "session_id": "s1", "echo": True}),
        post("s1 twice", COMPLETIONS, {**COMPLETION, "session_id": "s1", "session_params": {"id": "s1"}}),
        post("s1 replace", COMPLETIONS, {**COMPLETION, "session_params": {"id": "s1", "replace": True}}),
        post("s1 too long", COMPLETIONS, {**COMPLETION, "session_id": "s1", "prompt": "x" * 4090}),
        post("p1 first", GENERATE, {**GENERATING, "rid": "r1", "session_params": {"id": "p1"}}),
        post("p1 second", GENERATE, {**GENERATING, "rid": "r2", "session_params": {"id": "p1", "rid": "r1"}}),
        post(
            "p1 branch",
            GENERATE,
            {**GENERATING, "rid": "r3", "session_params": {"id": "p1", "rid": "r1", "replace": True}},
        ),
        post(
            "p1 offset",
            GENERATE,
            {
                **GENERATING,
                "rid": "r4",
                "session_params": {"id": "p1", "rid": "r2", "offset": 3, "drop_previous_output": True},
            },
        ),
        post("p1 unknown turn", GENERATE, {**GENERATING, "session_params": {"id": "p1", "rid": "nobody"}}),
        post("g1 turn", GENERATE, {**GENERATING, "session_id": "g1"}),
        post("g1 turn streamed", GENERATE, {**GENERATING, "session_params": {"id": "g1"}, "stream": True}),
        post("g1 turn", RESPONSES, {**RESPONDING, "session_params": {"id": "g1"}}),
        get("/v1/sessions", name="all sessions", settles=True),
        post("close g1", "/close_session", {"session_id": "g1"}),
        post("close again", "/close_session", {"session_id": "g1"}),
        post("close, bad id", "/close_session", {"session_id": "a b"}),
        Ask("close s1", "DELETE", "/v1/sessions/s1"),
        Ask("close s1 again", "DELETE", "/v1/sessions/s1"),
        Ask("close bad id", "DELETE", "/v1/sessions/a%20b"),
        post("turn of a closed session", COMPLETIONS, {**COMPLETION, "session_id": "s1"}),
    ]
    return steps
