"""Several tenants of one daemon: no tenant sees data of another, and no operation works without the right key."""

from __future__ import annotations

import contextlib
from typing import Any

import httpx
import pytest

SECRET = "the password of the harbour office, which nobody else may learn, is: "
KEYS = {"a": "key-of-tenant-a", "b": "key-of-tenant-b", "admin": "key-of-the-operator"}
Tenant = httpx.Client


@pytest.fixture(scope="module")
def tenants(start_shared_daemon: Any) -> Any:
    """A client for each key, and one without a key."""
    flags = ("--api-key", KEYS["a"], "--api-key", KEYS["b"], "--admin-api-key", KEYS["admin"], "--isolate-keys")
    url = start_shared_daemon(*flags, "--sim-step-ms", "2", "--enable-streaming-session").url
    with contextlib.ExitStack() as clients:
        made = {
            name: clients.enter_context(httpx.Client(base_url=url, timeout=60, headers={"x-api-key": key}))
            for name, key in {**KEYS, "nobody": "none"}.items()
        }
        yield made


def cached(tenant: Tenant, prompt: str, **fields: object) -> int:
    reply = tenant.post("/v1/completions", json={"prompt": prompt, "max_tokens": 1, **fields})
    assert reply.status_code == 200, reply.text
    return int(reply.json()["usage"]["prompt_tokens_details"]["cached_tokens"])


def test_no_tenant_sees_what_another_has_sent(tenants: dict[str, Tenant]) -> None:
    a, b = tenants["a"], tenants["b"]
    for fields in ({}, {"cache_salt": "salt of a"}):
        for guess in ("moonlight", "sunshine"):
            assert tenants["admin"].post("/flush_cache?timeout=10").status_code == 200
            assert cached(a, SECRET + "moonlight", **fields) == 0
            assert cached(a, SECRET + "moonlight", **fields) > 32, "its own"
            assert cached(b, SECRET + guess, **fields) == 0, "right or wrong, also with the other's salt"


def test_no_tenant_reaches_another_s_requests_or_sessions(tenants: dict[str, Tenant]) -> None:
    a, b = tenants["a"], tenants["b"]
    assert a.post("/v1/sessions", json={"session_id": "s", "streaming": True}).status_code < 300
    assert b.get("/v1/sessions/s").status_code == 404
    assert a.get("/v1/sessions/s").status_code == 200
    body = {"prompt": "tide", "max_tokens": 5000, "ignore_eos": True, "stream": True, "rid": "mine"}
    with a.stream("POST", "/v1/completions", json=body) as stream:
        lines = stream.iter_lines()
        assert next(lines).startswith("data: ")
        assert b.post("/abort_request", json={"rid": "mine"}).json() == {"num_aborted": 0}
        assert b.post("/abort_request", json={"abort_all": True}).status_code == 403
        assert tenants["admin"].post("/abort_request", json={"rid": "mine"}).json() == {"num_aborted": 1}
        assert '"code":"aborted"' in list(lines)[-2]


def test_without_a_key_there_are_only_the_probes(tenants: dict[str, Tenant]) -> None:
    nobody = tenants["nobody"]
    paths = tenants["a"].get("/openapi.json").json()["paths"]
    opened = [
        path
        for path, item in paths.items()
        for method in item
        if nobody.request(method, path.replace("{", "x").replace("}", "x")).status_code != 401
    ]
    assert sorted(opened) == ["/health", "/health_generate", "/metrics", "/ready"]
    for path in ("/docs", "/redoc", "/openapi.json", "/nothing"):
        assert nobody.get(path).status_code == 401
