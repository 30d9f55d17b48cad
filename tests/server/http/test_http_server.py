"""The number of connections that a server accepts, and how it stops."""

from __future__ import annotations

import resource
import threading
import urllib.request
from collections.abc import Iterator

import pytest

from ebbtide.config import LimitsConfig
from ebbtide.server.http import http_server as module
from ebbtide.server.http.http_server import MAX_OPEN_FILES, RESERVED_FILES, http_server, wire_limits
from ebbtide.server.http.listening import listen, url_of


@pytest.fixture(autouse=True)
def file_limit() -> Iterator[tuple[int, int]]:
    """The limits of open files, restored afterwards."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield before
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_connections_default_to_the_limit_of_open_files(file_limit: tuple[int, int]) -> None:
    _, hard = file_limit
    resource.setrlimit(resource.RLIMIT_NOFILE, (1000, hard))
    most = MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, MAX_OPEN_FILES)
    assert wire_limits(LimitsConfig()).max_connections == most - RESERVED_FILES
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (most, hard), "the usual 1024 would not do"


def test_connections_never_exceed_the_limit_of_open_files() -> None:
    assert wire_limits(LimitsConfig(max_connections=10)).max_connections == 10
    assert wire_limits(LimitsConfig(max_connections=10**9)).max_connections < MAX_OPEN_FILES
    assert wire_limits(LimitsConfig(receive_timeout=2.5)).receive_timeout_s == 2.5


def test_stop_ends_the_server_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TICK_S", 3600.0)

    async def app(scope, receive, send):  # type: ignore[no-untyped-def]
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    listener = listen("127.0.0.1", 0)
    server = http_server(app, None)
    thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
    thread.start()
    with urllib.request.urlopen(url_of(listener), timeout=20) as answer:
        assert answer.status == 204
        assert answer.headers["date"]
    server.stop()
    thread.join(20)
    assert not thread.is_alive()


def test_a_server_that_is_stopped_before_it_runs_ends() -> None:
    async def app(scope, receive, send):  # type: ignore[no-untyped-def]
        raise AssertionError("no request is sent")

    server = http_server(app, None)
    server.stop()
    thread = threading.Thread(target=server.run, args=([listen("127.0.0.1", 0)],), daemon=True)
    thread.start()
    thread.join(20)
    assert not thread.is_alive()
