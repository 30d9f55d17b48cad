"""An entry of the route table, with its description for /openapi.json."""

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
    """A method and path with its endpoint."""

    method: str
    path: str
    endpoint: Endpoint
    body: type | None = None  # type of the JSON body
    is_admin: bool = False  # True if it requires admin rights
    optional: bool = False  # True if the body may be omitted
    query: Mapping[str, str] = field(default_factory=dict)  # parameter -> description
    streams: bool = False  # True if the body's "stream" turns the response into events
    media: str = JSON  # content type of an unstreamed response; "" for an empty one
