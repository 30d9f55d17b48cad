"""uvicorn as this server uses it. Knows sockets and timeouts, no routes."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import uvicorn
from starlette.types import ASGIApp

from ebbtide.config import LimitsConfig

from .tls import Tls
from .wire_protocol import WireLimits, WireProtocol

KEEP_ALIVE_S = 75  # longer than the pools of the usual clients keep a connection
SHUTDOWN_GRACE_S = 5  # for answers that are decided to leave
MAX_OPEN_FILES = 65_536
RESERVED_FILES = 256  # that the process has open besides connections, with room to spare
TICKS_PER_CERT_CHECK = 100  # uvicorn ticks ten times a second; a renewed certificate is seen within ten seconds


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
        if self._tls is not None and counter % TICKS_PER_CERT_CHECK == 0:
            self._tls.reload_if_changed()
        return await super().on_tick(counter)


def wire_limits(config: LimitsConfig) -> WireLimits:
    """The limits of connections: as many as were asked for, at most as many as this process may have files open.

    Raises that number, within what the system allows.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, MAX_OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    room = max(wanted - RESERVED_FILES, 1)
    return WireLimits(min(config.max_connections or room, room), config.receive_timeout)


def http_server(app: ASGIApp, tls: Tls | None, limits: WireLimits | None = None) -> HttpServer:
    """A server for ``app``, which is not started."""
    config = uvicorn.Config(
        app,
        log_config=None,
        log_level="warning",
        access_log=False,
        http=partial(WireProtocol, limits=limits or WireLimits()),  # type: ignore[arg-type]  # called, no more
        lifespan="off",
        ws="none",
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=SHUTDOWN_GRACE_S,
    )
    config.load()
    config.ssl = None if tls is None else tls.context
    return HttpServer(config, tls)
