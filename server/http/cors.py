"""Decides which browser origins may use the API (CORS, cross-site requests), and handles a reverse proxy's path
prefix.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from ebbtide.config import AccessConfig
from ebbtide.errors import Rejected, StartupError

from .error_replies import error_reply

ORIGIN = re.compile(r"\*|[a-z][a-z0-9+.-]*://[^/\s?#]+")
ROOT_PATH = re.compile(r"(/[^/\s?#]+)*")
EXPOSED_HEADERS = (
    "x-request-id",
    "request-id",
    "retry-after",
    "x-should-retry",
    "openai-processing-ms",
    "traceresponse",
)
METHODS = ("GET", "HEAD", "POST", "DELETE", "OPTIONS")
SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
PREFLIGHT_MAX_AGE_S = 600


class RootPath:
    """Middleware that also serves the routes below ``root_path``, for a proxy that does not strip its path prefix."""

    def __init__(self, app: ASGIApp, root_path: str) -> None:
        self._app = app
        self._root_path = root_path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._root_path:
            scope["root_path"] = self._root_path
        await self._app(scope, receive, send)


class OriginGuard:
    """Refuses state-changing requests from web pages whose origin is neither the server's origin nor in ``origins``.

    CORS alone is not enough: it keeps a page from reading responses, but browsers send forms without a preflight
    request.
    admin_get_paths: paths on which GET changes state.
    """

    def __init__(self, app: ASGIApp, origins: Collection[str], admin_get_paths: Collection[str]) -> None:
        self._app = app
        self._origins = frozenset(origins)
        self._admin_get_paths = frozenset(admin_get_paths)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._changes_state(scope) and not self._is_allowed(Headers(scope=scope)):
            text = "Requests from this origin are not allowed (--allowed-origins)."
            refusal = Rejected(text, status=403, kind="permission_error", code="origin_not_allowed")
            await error_reply(refusal, scope)(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _changes_state(self, scope: Scope) -> bool:
        path: str = scope["path"].removeprefix(scope.get("root_path", ""))
        return scope["method"] not in SAFE_METHODS or path in self._admin_get_paths

    def _is_allowed(self, headers: Headers) -> bool:
        """Return True for non-browser clients, which send neither header, and for allowed origins.

        A page cannot set the headers Origin, Sec-Fetch-Site and Host.
        """
        origin, site = headers.get("origin"), headers.get("sec-fetch-site", "none")
        if "*" in self._origins or origin in self._origins or site == "same-origin":
            return True
        if origin is None:
            return site == "none"
        return origin.partition("://")[2].lower() == headers.get("host", "").lower() != ""


def add_cors(app: ASGIApp, origins: Collection[str]) -> ASGIApp:
    """Wrap ``app`` so that pages of ``origins`` may read its responses, including errors.

    Returns ``app`` itself if there are no origins.
    """
    if not origins:
        return app
    return CORSMiddleware(
        app,
        allow_origins=origins,
        allow_methods=METHODS,
        allow_headers=("*",),
        expose_headers=EXPOSED_HEADERS,
        max_age=PREFLIGHT_MAX_AGE_S,
    )


def check_origins_and_root_path(config: AccessConfig) -> None:
    """Raise StartupError if an origin or the root path is malformed."""
    for origin in config.allowed_origins:
        if not ORIGIN.fullmatch(origin):
            raise StartupError(f"--allowed-origins must be * or an origin such as https://host:port, not {origin!r}.")
    if not ROOT_PATH.fullmatch(config.root_path):
        raise StartupError(
            f"--root-path must be a path such as /llm without a trailing slash, not {config.root_path!r}."
        )
