"""Recorded requests that do not reach the model: probes, wrong methods, malformed bodies, and malformed HTTP."""

from __future__ import annotations

from recorded_cases import JSON, Ask, get, post
from recorded_openai import CHAT, COMPLETION, COMPLETIONS, RESPONSES
from recorded_others import COUNT, GENERATE, MESSAGES

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
    """Routes that count the earlier requests."""
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
