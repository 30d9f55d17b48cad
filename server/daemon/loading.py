"""Replies to clients and shows progress to the operator while the model loads."""

from __future__ import annotations

import html
import logging
import sys
from collections.abc import Callable
from typing import TextIO

from starlette.datastructures import Headers
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from ebbtide.config import AccessConfig
from ebbtide.errors import Rejected
from ebbtide.runtime.log import CLEAR_LINE

from ..api.error_formats import ERROR_FORMATS
from ..console.files import accepts_html
from ..http.error_replies import SetErrorFormats, error_reply
from ..http.middleware import RequestIds

log = logging.getLogger(__name__)


BAR_WIDTH = 24  # characters
REFRESH_S = 2  # interval in seconds at which a browser requests the page again
PAGE_HEADERS = {
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "cache-control": "no-store",
    "vary": "Accept",
    "retry-after": str(REFRESH_S),
}
PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta http-equiv="refresh" content="{refresh_s}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>ebbtide is loading</title>
<style>
:root {{ color-scheme: light dark; font: 1.1rem system-ui, sans-serif }}
body {{ margin: 20vh auto; width: 80% }}
</style>
<h1>ebbtide is loading</h1>
<p role="status">{step} …</p>
<p>This page becomes the console when the model is ready.</p>
</html>
"""


class AppSwitch:
    """The ASGI application.

    Until ``switch_to`` is called, it answers every request with "The model is still loading". A browser
    that requests the path of the console gets a page that reloads itself.
    """

    def __init__(self, access: AccessConfig | None = None, step: Callable[[], str] = str) -> None:
        """step: returns the current step of loading."""
        access = access or AccessConfig()
        self._app: ASGIApp | None = None
        self._step = step
        root_path = access.root_path
        self._page_paths = () if access.disable_console else ("/", f"{root_path}/", root_path or "/")

    def switch_to(self, app: ASGIApp) -> None:
        """Forward all further requests to ``app``."""
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward a request to the application, or answer that the model is loading."""
        if self._app is not None:
            await self._app(scope, receive, send)
        else:
            await RequestIds(SetErrorFormats(self._loading, ERROR_FORMATS))(scope, receive, send)

    async def _loading(self, scope: Scope, receive: Receive, send: Send) -> None:
        # /health reports liveness only; every other path, including /ready, answers 503.
        reply: Response = JSONResponse({}) if scope["path"] == "/health" else error_reply(_still_loading(), scope)
        if scope["path"] in self._page_paths and scope["method"] in ("GET", "HEAD"):
            if accepts_html(Headers(scope=scope)):
                text = PAGE.format(refresh_s=REFRESH_S, step=html.escape(self._step() or "Starting"))
                reply = Response(text, status_code=503, headers=PAGE_HEADERS, media_type="text/html")
            else:
                reply.headers["vary"] = "Accept"
        await reply(scope, receive, send)


def _still_loading() -> Rejected:
    text = "The model is still loading."
    return Rejected(text, status=503, kind="overloaded_error", code="loading", retry_after_s=5)


class ProgressLine:
    """Shows loading progress: on a terminal in one line that is rewritten, with a bar; otherwise one line per step.

    logs: True to write log records instead.
    """

    def __init__(self, stream: TextIO = sys.stderr, *, logs: bool = False) -> None:
        self._stream = stream
        self._logs = logs
        self._terminal = stream.isatty() and not logs
        self._last = ""
        self._share: float | None = None

    @property
    def step(self) -> str:
        """The loading step that was shown last, with the percentage that is done; "" before the first one."""
        return self._last if self._share is None else f"{self._last}: {self._share:.0%}"

    def show(self, text: str, share: float | None = None) -> None:
        """Show the current loading step. Does nothing if it is unchanged. See ``Progress``."""
        if (text, share) == (self._last, self._share):
            return
        is_new, self._last, self._share = text != self._last, text, share
        line = "".join(c for c in text if c.isprintable())
        if self._terminal:
            self._stream.write(f"{CLEAR_LINE}{line} {'…' if share is None else _bar(share)}")
            self._stream.flush()
        elif is_new and self._logs:
            log.info("%s", text)
        elif is_new:
            self._stream.write(f"{line}\n")
            self._stream.flush()

    def clear(self) -> None:
        """Clear the terminal's progress line."""
        if self._terminal and self._last:
            self._stream.write(CLEAR_LINE)
            self._stream.flush()


def _bar(share: float) -> str:
    return f"[{'█' * round(share * BAR_WIDTH):{BAR_WIDTH}}] {share:4.0%}"
