"""Recorded requests that open, use and close sessions."""

from __future__ import annotations

from recorded_cases import Ask, cases, get, post
from recorded_openai import CHAT, CHATTING, COMPLETION, COMPLETIONS, RESPONDING, RESPONSES
from recorded_others import GENERATE, GENERATING


def session_asks() -> list[Ask]:
    """Sessions in both forms, and their turns on every route that accepts them."""
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
