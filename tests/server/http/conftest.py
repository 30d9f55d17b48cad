"""A server with limits on a real socket."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ebbtide.config import ServerConfig
from ebbtide.server.app import create_app
from ebbtide.server.http.http_server import http_server
from ebbtide.server.http.listening import listen, url_of
from ebbtide.server.http.wire_protocol import WireLimits

from ..conftest import ScriptedEngine, build_state

Serve = Callable[..., str]


@pytest.fixture
def serve(engine: ScriptedEngine, config: ServerConfig) -> Iterator[Serve]:
    """Return a function that starts a server with the given limits and returns its URL."""
    with contextlib.ExitStack() as ends:

        def start(**limits: Any) -> str:
            state = build_state(engine, config)
            ends.callback(state.prompts.close)
            listener = listen("127.0.0.1", 0)
            server = http_server(create_app(state), None, WireLimits(**limits))
            thread = threading.Thread(target=server.run, args=([listener],))
            thread.start()

            def stop() -> None:
                server.stop()
                thread.join(20)
                assert not thread.is_alive()

            ends.callback(stop)
            return url_of(listener)

        yield start
