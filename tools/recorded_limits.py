"""Recorded requests of daemons that lack time, places in the queue, or memory."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from recorded_cases import KEY, Setup, bearer, get, post, whole_and_streamed
from recorded_openai import CHAT, CHATTING, COMPLETION, COMPLETIONS, GREEDY, RESPONDING, RESPONSES
from recorded_others import GENERATE, GENERATING, MESSAGES, SAYING


def limits_setup() -> Setup:
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


def queue_setup() -> Setup:
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


def pressed_setup() -> Setup:
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


def retracting_setup() -> Setup:
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
