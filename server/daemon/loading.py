"""Replies to clients and shows progress to the operator while the model loads."""

from __future__ import annotations

import logging
import sys
from typing import TextIO

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from ebbtide.errors import Rejected
from ebbtide.runtime.log import CLEAR_LINE

from ..api.error_formats import ERROR_FORMATS
from ..http.error_replies import SetErrorFormats, error_reply
from ..http.middleware import RequestIds

log = logging.getLogger(__name__)


class AppSwitch:
    """The ASGI application.

    Until ``switch_to`` is called, it answers every request with "The model is still loading".
    """

    def __init__(self) -> None:
        self._app: ASGIApp | None = None

    def switch_to(self, app: ASGIApp) -> None:
        """Forward all further requests to ``app``."""
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward a request to the application, or answer that the model is loading."""
        if self._app is not None:
            await self._app(scope, receive, send)
        else:
            await RequestIds(SetErrorFormats(_loading, ERROR_FORMATS))(scope, receive, send)


async def _loading(scope: Scope, receive: Receive, send: Send) -> None:
    text = "The model is still loading."
    error = Rejected(text, status=503, kind="overloaded_error", code="loading", retry_after_s=5)
    # /health reports liveness only; every other path, including /ready, answers 503.
    reply = JSONResponse({}) if scope["path"] == "/health" else error_reply(error, scope)
    await reply(scope, receive, send)


class ProgressLine:
    """Shows loading progress: on a terminal in one line that is rewritten, otherwise as plain lines.

    logs: True to write log records instead.
    """

    def __init__(self, stream: TextIO = sys.stderr, *, logs: bool = False) -> None:
        self._stream = stream
        self._logs = logs
        self._terminal = stream.isatty() and not logs
        self._last = ""

    def show(self, text: str) -> None:
        """Show the current loading step. Does nothing if ``text`` is unchanged."""
        if text == self._last:
            return
        self._last = text
        if self._logs:
            log.info("%s", text)
            return
        line = "".join(c for c in text if c.isprintable())
        self._stream.write(f"{CLEAR_LINE}{line} …" if self._terminal else f"{line}\n")
        self._stream.flush()

    def clear(self) -> None:
        """Clear the terminal's progress line."""
        if self._terminal and self._last:
            self._stream.write(CLEAR_LINE)
            self._stream.flush()
