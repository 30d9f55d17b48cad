"""The daemons whose answers are recorded, and the requests that each of them gets. Data only."""

from __future__ import annotations

from typing import Any

from recorded_cases import KEY, Ask, Setup, bearer, cases, get, post, whole_and_streamed
from recorded_http import late_asks, plain_asks
from recorded_limits import limits_setup, pressed_setup, queue_setup, retracting_setup
from recorded_openai import CHAT, COMPLETION, COMPLETIONS, NAMED, RESPONDING, RESPONSES, TOOLS, openai_asks
from recorded_others import GENERATE, GENERATING, MESSAGES, SAYING, dialect_asks
from recorded_parsers import PARSERS, parser_setup
from recorded_sessions import session_asks

SCRIPT: dict[str, Any] = {
    "emoji": "👩‍👩‍👧 waves 🌊🌊 at größer 日本語 שלום end",
    "near miss": "stop? STO no, STOP now",
    "broken": [0x61, 0x80, 0xE2, 0x82, 0x62, 0xF0, 0x9F, 0x8C],
    "separators": "a\u2028b\u2029c\u0085d",
}
OTHER, ADMIN = "key-two", "key-admin"
WEB = "https://page.example"


def setups() -> list[Setup]:
    """Every daemon over the simulated model."""
    return [
        _main(),
        *(parser_setup(name) for name in PARSERS),
        _keys(),
        limits_setup(),
        queue_setup(),
        pressed_setup(),
        retracting_setup(),
        _odd(),
    ]


def real_setup() -> Setup:
    """A few greedy requests to a real model."""
    chat = {"messages": [{"role": "user", "content": "Name three seas."}], "max_tokens": 24, "temperature": 0}
    text = {"prompt": "The tide", "max_tokens": 24, "temperature": 0}
    asks = [
        *whole_and_streamed(COMPLETIONS, text, {"plain": {}, "stop": {"stop": ["."]}, "echo": {"echo": True}}),
        *whole_and_streamed(CHAT, chat, {"plain": {}, "n": {"n": 2}, "tools": {"tools": TOOLS}}),
        *cases(
            CHAT,
            chat,
            {
                "choice": {"structured_outputs": {"choice": ["Red Sea", "North Sea"]}},
                "named": {"tools": TOOLS, "tool_choice": NAMED, "max_tokens": 60},
            },
        ),
        *cases("/tokenize", {}, {"text": {"prompt": "The tide 🌊"}, "chat": {"messages": chat["messages"]}}),
        *whole_and_streamed(RESPONSES, RESPONDING, {"plain": {}}),
        *whole_and_streamed(MESSAGES, SAYING, {"plain": {}}),
        *whole_and_streamed(
            GENERATE, {"text": "The tide"}, {"plain": {"sampling_params": {"temperature": 0, "max_new_tokens": 16}}}
        ),
    ]
    return Setup("smollm2", ("--dtype", "float32", "--max-total-tokens", "4096"), tuple(asks), model="smollm2")


def _main() -> Setup:
    flags = (
        "--sim-script",
        "{dir}/script.json",
        "--enable-streaming-session",
        "--context-length",
        "4096",
        "--sim-step-ms",
        "0.5",
    )
    asks = [*plain_asks(), *openai_asks(), *dialect_asks(), *session_asks(), *late_asks()]
    return Setup("main", flags, tuple(asks), SCRIPT)


def _keys() -> Setup:
    flags = (
        "--api-key",
        KEY,
        "--api-key-file",
        "{dir}/keys.txt",
        "--admin-api-key",
        ADMIN,
        "--allowed-origins",
        WEB,
        "--isolate-keys",
        "--max-sessions-per-key",
        "1",
        "--enable-streaming-session",
    )
    short = {**COMPLETION, "max_tokens": 1}
    shown = {
        "no key": {},
        "wrong": bearer("x"),
        "one": bearer(KEY),
        "two": bearer(OTHER),
        "admin": bearer(ADMIN),
        "x-api-key": {"x-api-key": KEY},
        "basic": {"authorization": f"Basic {KEY}"},
    }
    asks: list[Ask] = []
    for name, headers in shown.items():
        asks += [
            get(path, name=f"GET {path}, {name}", headers=headers)
            for path in ("/health", "/ready", "/v1/models", "/nowhere", "/flush_cache", "/openapi.json")
        ]
        asks += [
            post(f"{name} {sorted(body)[:1]}", path, body, headers=headers)
            for path, body in (
                (COMPLETIONS, short),
                (MESSAGES, {**SAYING, "max_tokens": 1}),
                ("/pause_generation", {}),
                ("/continue_generation", {}),
                ("/abort_request", {"abort_all": True}),
                ("/abort_request", {"rid": "x"}),
            )
        ]
        asks.append(
            Ask(f"POST /flush_cache, {name}", "POST", "/flush_cache", headers=headers, settles=name in ("one", "admin"))
        )
    for name in ("one", "two", "one again"):
        key = bearer(OTHER if name == "two" else KEY)
        asks.append(post(f"open {name}", "/v1/sessions", {"session_id": f"s-{name[:3]}"}, headers=key))
        asks.append(get("/v1/sessions", name=f"sessions of {name}", headers=key))
    asks.append(post("second", "/v1/sessions", {"session_id": "more"}, headers=bearer(KEY)))
    asks.append(get("/v1/sessions/s-two", name="another's session", headers=bearer(KEY)))
    asks.append(post("another's session", COMPLETIONS, {**short, "session_id": "s-two"}, headers=bearer(KEY)))
    asked = {"access-control-request-method": "POST", "access-control-request-headers": "authorization"}
    for origin in (WEB, "https://evil.example", "null"):
        asks += [
            Ask(f"preflight {origin}", "OPTIONS", COMPLETIONS, headers={"origin": origin, **asked}),
            post(f"from {origin}", COMPLETIONS, short, headers={"origin": origin, **bearer(KEY)}),
            get("/v1/models", name=f"models from {origin}", headers={"origin": origin, **bearer(KEY)}),
            get("/v1/models", name=f"models from {origin} without key", headers={"origin": origin}),
        ]
    asks.append(post("cross-site", COMPLETIONS, short, headers={"sec-fetch-site": "cross-site", **bearer(KEY)}))
    return Setup("keys", flags, tuple(asks), headers=bearer(KEY))


def _odd() -> Setup:
    """Flags that change the content of answers."""
    flags = (
        "--root-path",
        "/llm",
        "--disable-docs",
        "--served-model-name",
        "org/name",
        "--allowed-origins",
        "*",
        "--incremental-streaming-output",
        "--metrics-compat",
        "vllm,sglang",
        "--disable-radix-cache",
        "--max-body-bytes",
        "2000",
        "--max-sessions",
        "1",
        "--page-size",
        "1",
        "--enable-streaming-session",
        "--sim-step-ms",
        "0.5",
    )
    paths = (
        "/v1/models",
        "/llm/v1/models",
        "/v1/models/org/name",
        "/v1/models/sim",
        "/docs",
        "/openapi.json",
        "/server_info",
        "/llm/health",
        "/nowhere",
    )
    asks = [
        *map(get, paths),
        get("/v1/models", name="from a page", headers={"origin": WEB}),
        *whole_and_streamed(GENERATE, GENERATING, {"plain": {}, "logprobs": {"return_logprob": True}}),
        *cases(
            COMPLETIONS,
            COMPLETION,
            {
                "plain": {},
                "sim": {"model": "sim"},
                "org/name": {"model": "org/name"},
                "too large": {"prompt": "x" * 2000},
            },
        ),
        post("too large", "/llm/v1/messages", {"messages": "x" * 2000}),
        post("one", "/v1/sessions", {"session_id": "one"}),
        post("two", "/v1/sessions", {"session_id": "two"}),
        get("/metrics", settles=True),
        get("/v1/loads?format=prometheus", settles=True),
    ]
    return Setup("odd flags", flags, tuple(asks))
