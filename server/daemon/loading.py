"""While the model loads: what a client hears, and what the operator sees."""

from __future__ import annotations

import logging
import sys
from typing import TextIO

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from ebbtide.errors import Rejected

from ..api.error_forms import ERROR_FORMS
from ..http.error_replies import UseErrorForms, error_reply
from ..http.middleware import RequestIds

log = logging.getLogger(__name__)


class AppSwitch:
    """The application behind the socket from the first moment: alive at once, ready when ``open`` is called."""

    def __init__(self) -> None:
        self._app: ASGIApp | None = None

    def switch_to(self, app: ASGIApp) -> None:
        """Let everything through to ``app`` from now on."""
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request: ``app``'s, or the answer of a server that is loading."""
        if self._app is not None:
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            await RequestIds(UseErrorForms(_loading, ERROR_FORMS))(scope, receive, send)


async def _loading(scope: Scope, receive: Receive, send: Send) -> None:
    await _loading_reply(scope)(scope, receive, send)


def _loading_reply(scope: Scope) -> JSONResponse:
    if scope["path"] == "/health":
        return JSONResponse({})  # alive; /ready says the rest
    error = Rejected(
        "The model is still loading.", status=503, kind="overloaded_error", code="loading", retry_after_s=5
    )
    return error_reply(error, scope)


class ProgressLine:
    """What is being loaded: a line that is rewritten on a terminal, else plain lines, or log records with ``logs``."""

    def __init__(self, stream: TextIO = sys.stderr, *, logs: bool = False) -> None:
        self._stream = stream
        self._logs = logs
        self._terminal = stream.isatty() and not logs
        self._last = ""

    def show(self, text: str) -> None:
        """Say what is being done now. The same text again says nothing."""
        if text == self._last:
            return
        self._last = text
        if self._logs:
            log.info("%s", text)
            return
        line = "".join(c for c in text if c.isprintable())
        self._stream.write(f"\r\x1b[2K{line} …" if self._terminal else f"{line}\n")
        self._stream.flush()

    def clear(self) -> None:
        """Leave the terminal's line empty for what comes next."""
        if self._terminal and self._last:
            self._stream.write("\r\x1b[2K")
            self._stream.flush()
