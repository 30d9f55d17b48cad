"""The page /docs: Swagger UI, which shows /openapi.json.

All files of the page are in this package, so the page needs no other server.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, Response

FOLDER = Path(__file__).parent / "swagger_ui"  # written by tools/fetch_swagger_ui.py
PLAIN, SCRIPT = "text/plain; charset=utf-8", "text/javascript; charset=utf-8"
FILES: Mapping[str, str] = {  # name -> content type
    "swagger-ui-bundle.js": SCRIPT,
    "swagger-ui-bundle.js.LICENSE.txt": PLAIN,
    "swagger-ui.css": "text/css; charset=utf-8",
    "LICENSE": PLAIN,
    "NOTICE": PLAIN,
}
# All addresses are relative to /docs, so that they stay valid below the path prefix of a proxy.
PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>ebbtide</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="docs/swagger-ui.css">
</head>
<body>
<div id="swagger-ui"></div>
<script src="docs/swagger-ui-bundle.js"></script>
<script src="docs/start.js"></script>
</body>
</html>
"""
START = """SwaggerUIBundle({
  url: "openapi.json",
  dom_id: "#swagger-ui",
  deepLinking: true,
  validatorUrl: null  // the default sends the address of the schema to another server
});
"""
SECURITY_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}
Endpoint = Callable[[Request], Awaitable[Response]]


def add_docs(app: Starlette) -> None:
    """Add the page and its files to ``app``, but not to /openapi.json."""
    endpoints = {"/docs": _text(PAGE, "text/html; charset=utf-8"), "/docs/start.js": _text(START, SCRIPT)}
    endpoints |= {f"/docs/{name}": _file(name, media) for name, media in FILES.items()}
    for path, endpoint in endpoints.items():
        app.add_route(path, endpoint, methods=["GET"], include_in_schema=False)


def _text(content: str, media: str) -> Endpoint:
    async def answer(request: Request) -> Response:
        return Response(content, headers=SECURITY_HEADERS | {"cache-control": "no-cache"}, media_type=media)

    return answer


def _file(name: str, media: str) -> Endpoint:
    async def answer(request: Request) -> Response:
        headers = SECURITY_HEADERS | {"cache-control": "private, max-age=3600"}
        return FileResponse(FOLDER / name, headers=headers, media_type=media)

    return answer
