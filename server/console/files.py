"""The console's page and files. They contain no data, so they are served without an API key."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

FOLDER = Path(__file__).parent / "static"
VENDORED = FOLDER / "vendor"  # written by tools/fetch_uplot.py
TYPES = {
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}
PAGE = "index.html"
# No HTML can be inserted into the page, and only the console's own files can run as scripts.
SECURITY_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "cross-origin-resource-policy": "same-origin",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}
Endpoint = Callable[[Request], Awaitable[Response]]


def console_files() -> Mapping[str, Path]:
    """Return the console's files by the URL path under which they are served."""
    found = {f"/console/{path.relative_to(FOLDER).as_posix()}": path for path in sorted(FOLDER.rglob("*"))}
    return {name: path for name, path in found.items() if path.suffix in TYPES}


def add_console_files(app: Starlette) -> None:
    """Add the files to ``app``, but not to /openapi.json. ``ConsoleAtRoot`` serves the page itself."""
    for name, path in console_files().items():
        app.add_route(name, _file(path), methods=["GET"], include_in_schema=False)


def _file(path: Path) -> Endpoint:
    # The console's own files may change with each version of the daemon, but their names do not.
    cache = "public, max-age=86400" if path.is_relative_to(VENDORED) else "no-cache"

    content, media = path.read_bytes(), TYPES[path.suffix]

    async def answer(request: Request) -> Response:
        return Response(content, headers=SECURITY_HEADERS | {"cache-control": cache}, media_type=media)

    return answer


class ConsoleAtRoot:
    """Middleware that answers a browser's GET / with the console's page. Other requests are passed to ``app``.

    It wraps the key check, because a browser cannot send a key before the page has asked the user for it.
    """

    def __init__(self, app: ASGIApp, root_path: str) -> None:
        self._app = app
        self._paths = {"/", f"{root_path}/", root_path or "/"}
        page = (FOLDER / PAGE).read_text(encoding="utf-8")
        # Without a root path, relative addresses are valid behind a proxy that strips its path prefix.
        page = page.replace('"console/', f'"{root_path}/console/') if root_path else page
        headers = SECURITY_HEADERS | {"cache-control": "no-cache", "vary": "Accept"}
        self._page = Response(page, headers=headers, media_type="text/html")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] in ("GET", "HEAD") and scope["path"] in self._paths and accepts_html(Headers(scope=scope)):
            await self._page(scope, receive, send)
            return
        await self._app(scope, receive, send)


def accepts_html(headers: Headers) -> bool:
    """Return True if the header Accept contains text/html.

    Browsers send it; API clients send */* or application/json.
    """
    listed = [entry.split(";") for value in headers.getlist("accept") for entry in value.lower().split(",")]
    return any(
        kind.strip() == "text/html" and not any(part.replace(" ", "").rstrip("0.") == "q=" for part in parts)
        for kind, *parts in listed
    )
