"""The daemons whose answers are recorded, and the requests that each of them gets. Data; knows nothing of ebbtide."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from recorded_cases import Ask, Setup, cases, get, post, whole_and_streamed
from recorded_openai import (
    CHAT,
    CHATTING,
    COMPLETION,
    COMPLETIONS,
    GREEDY,
    NAMED,
    RESPONDING,
    RESPONSES,
    TOOLS,
    openai_asks,
)
from recorded_others import (
    GENERATE,
    GENERATING,
    MESSAGES,
    SAYING,
    TOOL,
    dialect_asks,
    late_asks,
    plain_asks,
    session_asks,
)

SCRIPT: dict[str, Any] = {
    "emoji": "👩‍👩‍👧 waves 🌊🌊 at größer 日本語 שלום end",
    "near miss": "stop? STO no, STOP now",
    "broken": [0x61, 0x80, 0xE2, 0x82, 0x62, 0xF0, 0x9F, 0x8C],
    "separators": "a\u2028b\u2029c\u0085d",
}
ARGUMENTS = '{"city": "Zürich 日本語", "days": 2}'
OBJECT = f'{{"name": "weather", "arguments": {ARGUMENTS}}}'
# Tool parser → reasoning parser and what the model says in its marks.
PARSERS: dict[str, tuple[str, str, str]] = {
    "hermes": (
        "think",
        "<think>\nWhy 日本?\n</think>\n\n",
        f'<tool_call>\n{{"name": "weather", "arguments": {ARGUMENTS}}}\n</tool_call>',
    ),
    "llama3": ("none", "<think>why</think>", f'{{"name": "weather", "parameters": {ARGUMENTS}}}'),
    "mistral": (
        "mistral",
        "[THINK]why[/THINK]",
        f'[TOOL_CALLS] [{{"name": "weather", "arguments": {ARGUMENTS}}}, {{"name": "clock"}}]',
    ),
    "deepseek": (
        "deepseek_r1",
        "why</think>\n",
        f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n{ARGUMENTS}\n```"
        "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    ),
    "kimi": (
        "kimi",
        "◁think▷why◁/think▷",
        f"<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0<|tool_call_argument_begin|>{ARGUMENTS}"
        "<|tool_call_end|><|tool_calls_section_end|>",
    ),
    "qwen3_coder": (
        "seed_oss",
        "<seed:think>why</seed:think>",
        "<tool_call>\n<function=weather>\n<parameter=city>\nx\n</parameter>\n<parameter=days>\n2\n</parameter>\n"
        "</function>\n</tool_call>",
    ),
    "glm": (
        "cohere",
        "<|START_THINKING|>why<|END_THINKING|>",
        "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>x</arg_value>\n<arg_key>days</arg_key>\n"
        "<arg_value>2</arg_value>\n</tool_call>",
    ),
    "pythonic": (
        "granite",
        "Here is my thought process:why Here is my response:",
        '[weather(city="x", days=2), clock()]',
    ),
    "jamba": ("think", "<think>why</think>", f"<tool_calls>[{OBJECT}]</tool_calls>"),
    "granite": ("none", "", f"<|tool_call|>[{OBJECT}]"),
    "nemotron": ("none", "", f"<TOOLCALL>[{OBJECT}]</TOOLCALL>"),
    "cohere": (
        "none",
        "",
        f'<|START_ACTION|>[{{"tool_call_id": "0", "tool_name": "weather", "parameters": {ARGUMENTS}}}]<|END_ACTION|>',
    ),
    "internlm": (
        "none",
        "",
        f'<|action_start|><|plugin|>\n{{"name": "weather", "parameters": {ARGUMENTS}}}<|action_end|>\n',
    ),
    "longcat": ("none", "", f"<longcat_tool_call>{OBJECT}</longcat_tool_call>"),
    "phi4": ("none", "", f"functools[{OBJECT}]"),
    "lfm2": ("none", "", '<|tool_call_start|>[weather(city="x", days=2), clock()]<|tool_call_end|>'),
    "llama4": ("none", "", '<|python_start|>[weather(city="x", days=2)]<|python_end|>'),
    "minimax": (
        "none",
        "",
        '<minimax:tool_call>\n<invoke name="weather">\n<parameter name="city">x</parameter>\n'
        '<parameter name="days">2</parameter>\n</invoke>\n</minimax:tool_call>',
    ),
    "seed_oss": (
        "none",
        "",
        "<seed:tool_call>\n<function=weather>\n<parameter=city>\nx\n</parameter>\n</function>\n</seed:tool_call>",
    ),
}
KEY, OTHER, ADMIN = "key-one", "key-two", "key-admin"
WEB = "https://page.example"


def bearer(key: str) -> dict[str, str]:
    """The header that shows a key."""
    return {"authorization": f"Bearer {key}"}


def setups() -> list[Setup]:
    """Every daemon over the simulated model."""
    return [
        _main(),
        *(_parser(name) for name in PARSERS),
        _keys(),
        _limits(),
        _queue(),
        _pressed(),
        _retracting(),
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


def _parser(name: str) -> Setup:
    reasoning, thought, call = PARSERS[name]
    script = {
        "call": f"I look.\n{call}",
        "both": f"{thought}{call}",
        "think": f"{thought}Yes.",
        "cut": call[: len(call) // 2],
    }
    asks: list[Ask] = []
    for case in script:
        messages = [{"role": "system", "content": case}, {"role": "user", "content": "hi"}]
        base: dict[str, Any] = {"messages": messages, "tools": TOOLS, "temperature": 0, "max_tokens": 400}
        asks += whole_and_streamed(CHAT, base, {case: {}})
        asks += cases(CHAT, base, {f"{case} hidden": {"separate_reasoning": False, "tool_choice": "none"}})
    base = {**base, "messages": [{"role": "system", "content": "nothing"}, *base["messages"][1:]]}
    asks += whole_and_streamed(CHAT, base, {"forced": {"tool_choice": "required"}, "named": {"tool_choice": NAMED}})
    said = {"input": "hi", "temperature": 0, "tools": [{"type": "function", **TOOLS[0]["function"]}]}
    asks += whole_and_streamed(RESPONSES, said, {"both": {"instructions": "both"}})
    said = {"messages": [{"role": "user", "content": "hi"}], "temperature": 0, "max_tokens": 400, "tools": [TOOL]}
    asks += whole_and_streamed(MESSAGES, said, {"both": {"system": "both"}})
    flags = ("--sim-script", "{dir}/script.json", "--tool-call-parser", name, "--reasoning-parser", reasoning)
    return Setup(f"parser {name}", flags, tuple(asks), script)


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
    """Flags that change what is shown."""
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


def _limits() -> Setup:
    slow = {**COMPLETION, "max_tokens": 3000, "prompt": "slow"}
    flags = (
        "--sim-step-ms",
        "20",
        "--request-timeout",
        "0.4",
        "--api-key",
        KEY,
        "--max-requests-per-key",
        "2",
        "--context-length",
        "4096",
    )
    held = {"in_background": True, "ending_only": True}
    asks = [
        post("timeout", COMPLETIONS, slow),
        post("own timeout", COMPLETIONS, {**slow, "timeout": 0.1}, settles=True),
        post(
            "own timeout",
            GENERATE,
            {"text": "a", "timeout": 0.1, "sampling_params": {"max_new_tokens": 3000, "ignore_eos": True}},
        ),
        post("timeout in a stream", COMPLETIONS, {**slow, "stream": True}, settles=True, ending_only=True),
        post(
            "timeout in a stream",
            MESSAGES,
            {"messages": CHATTING["messages"], "max_tokens": 3000, "stream": True, "temperature": 0},
            settles=True,
            ending_only=True,
        ),
        post("held 1", COMPLETIONS, {**slow, "stream": True}, settles=True, load=1, **held),
        post("held 2", COMPLETIONS, {**slow, "stream": True}, load=2, **held),
        post("third", COMPLETIONS, {**slow, "max_tokens": 1}),
        get("/health", name="at the end", settles=True),
    ]
    shown = tuple(replace(ask, headers={**ask.headers, **bearer(KEY)}) for ask in asks)
    return Setup("limits", flags, shown, headers=bearer(KEY))


def _queue() -> Setup:
    long = {**COMPLETION, "max_tokens": 30_000, "stream": True}
    flags = ("--max-running-requests", "1", "--max-queued-requests", "1", "--sim-step-ms", "10")
    held = {"in_background": True, "ending_only": True}
    whole = {**long, "stream": False}
    asks = [
        post("held", COMPLETIONS, {**long, "rid": "held"}, load=1, **held),
        post("waiting", COMPLETIONS, {**whole, "rid": "waiting"}, load=2, **held),
        post("full", COMPLETIONS, COMPLETION),
        post("full", CHAT, {**CHATTING, "stream": True}),
        post("full", MESSAGES, SAYING),
        post("full", GENERATE, GENERATING),
        get("/flush_cache", name="flush while busy"),
        post("nobody", "/abort_request", {"rid": "nobody"}),
        post("waiting", "/abort_request", {"request_id": ["waiting"]}),
        post("held", "/abort_request", {"rid": "held"}),
        post(
            "generate",
            GENERATE,
            {
                "text": "a",
                "rid": "g",
                "stream": True,
                "sampling_params": {"max_new_tokens": 30_000, "ignore_eos": True, "temperature": 0},
            },
            settles=True,
            load=1,
            **held,
        ),
        post("all", "/abort_request", {"abort_all": True}),
        post("message", MESSAGES, {**SAYING, "max_tokens": 30_000, "stream": True, "rid": "m"}, settles=True),
        post("held again", COMPLETIONS, {**whole, "rid": "again"}, settles=True, load=1, **held),
        post("pause", "/pause_generation", {"mode": "in_place"}),
        post("while paused", COMPLETIONS, COMPLETION),
        post("while paused", MESSAGES, SAYING),
        get("/ready", name="ready while paused"),
        get("/health", name="health while paused"),
        post("session while paused", "/v1/sessions", {}),
        post("continue", "/continue_generation", {}),
        get("/ready", name="ready again"),
        post("pause and abort", "/pause_generation", {"mode": "abort"}),
        post("continue again", "/continue_generation", {}),
        post("after all", COMPLETIONS, COMPLETION, settles=True),
        post("pause wrongly", "/pause_generation", {"mode": "other"}),
    ]
    return Setup("queue", flags, tuple(asks))


def _pressed() -> Setup:
    flags = (
        "--max-total-tokens",
        "1024",
        "--page-size",
        "16",
        "--sim-step-ms",
        "2",
        "--context-length",
        "4096",
        "--schedule-conservativeness",
        "0.1",
    )
    big = {"prompt": "q" * 950, "max_tokens": 3000, **GREEDY}
    short = {"max_tokens": 250, **GREEDY}
    asks = [
        post("exhausted", COMPLETIONS, big),
        post("exhausted in a stream", COMPLETIONS, {**big, "stream": True}, settles=True, ending_only=True),
        post("exhausted", CHAT, {"messages": [{"role": "user", "content": "q" * 950}], "max_tokens": 3000, **GREEDY}),
        post(
            "exhausted",
            GENERATE,
            {
                "text": "q" * 950,
                "stream": True,
                "sampling_params": {"max_new_tokens": 3000, "ignore_eos": True, "temperature": 0},
            },
            ending_only=True,
        ),
        post("more than the pool", COMPLETIONS, {**big, "prompt": "q" * 1030, "max_tokens": 5}),
        *(
            post(f"side by side {number}", path, {**short, **fields, "stream": number % 2 == 1}, in_background=True)
            for number, (path, fields) in enumerate(
                [(COMPLETIONS, {"prompt": f"tide {number}"}) for number in range(6)]
                + [(CHAT, {"messages": CHATTING["messages"]})] * 2
            )
        ),
        get("/health", name="at the end", settles=True),
    ]
    return Setup("pressed", flags, tuple(asks))


def _retracting() -> Setup:
    flags = ("--test-retract-interval", "4", "--sim-step-ms", "1", "--context-length", "4096")
    table: dict[str, dict[str, Any]] = {"plain": {}, "long": {"max_tokens": 60}, "logprobs": {"logprobs": 1}}
    asks = [
        *whole_and_streamed(COMPLETIONS, COMPLETION, table),
        *whole_and_streamed(CHAT, CHATTING, {"usage": {"max_tokens": 40}}),
        *whole_and_streamed(GENERATE, GENERATING, {"plain": {}}),
        *whole_and_streamed(MESSAGES, SAYING, {"plain": {"max_tokens": 30}}),
        *whole_and_streamed(RESPONSES, RESPONDING, {"plain": {"max_output_tokens": 30}}),
        get("/pressure", settles=True),
    ]
    return Setup("retracting", flags, tuple(asks))
