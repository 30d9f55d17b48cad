"""uvicorn as this server uses it. Knows sockets and timeouts, no routes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from starlette.types import ASGIApp

from .tls import Tls
from .wire_protocol import WireProtocol

KEEP_ALIVE_S = 75  # longer than the pools of the usual clients keep a connection
REPLY_S = 5  # for answers that are decided to leave
TICKS_PER_LOOK = 100  # uvicorn ticks ten times a second; a renewed certificate is seen within ten seconds


class HttpServer(uvicorn.Server):
    """uvicorn, which leaves the signals to us and keeps the certificate fresh."""

    def __init__(self, config: uvicorn.Config, tls: Tls | None) -> None:
        super().__init__(config)
        self._tls = tls

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def on_tick(self, counter: int) -> bool:
        """uvicorn's own pulse. True ends the server."""
        if self._tls is not None and counter % TICKS_PER_LOOK == 0:
            self._tls.refresh()
        return await super().on_tick(counter)


def http_server(app: ASGIApp, tls: Tls | None) -> HttpServer:
    """A server for ``app``, which is not started."""
    config = uvicorn.Config(
        app,
        log_config=None,
        log_level="warning",
        access_log=False,
        http=WireProtocol,
        lifespan="off",
        ws="none",
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=REPLY_S,
    )
    config.load()
    config.ssl = None if tls is None else tls.context
    return HttpServer(config, tls)
