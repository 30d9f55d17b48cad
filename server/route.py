"""One line of the route table, and what it says for /openapi.json."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from starlette.requests import Request
from starlette.responses import Response

Endpoint = Callable[[Request], Awaitable[Response]]
JSON = "application/json"
TEXT = "text/plain"


@dataclass(frozen=True, slots=True)
class Route:
    """body: the type of the request's JSON; optional: it may be left out. is_admin: steers the server. query: what each
    parameter means. media: the content type of a good answer, "" for none; where a body can ask for a stream, that is
    another.
    """

    method: str
    path: str
    endpoint: Endpoint
    body: type | None = None
    is_admin: bool = False
    optional: bool = False
    query: Mapping[str, str] = field(default_factory=dict)
    media: str = JSON
