"""The entries of the route table, with their descriptions for /openapi.json."""

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
    """A method and a path, with the endpoint that handles them."""

    method: str
    path: str
    endpoint: Endpoint
    body: type | None = None  # type of the JSON body
    is_admin: bool = False  # True if the route requires admin rights
    optional: bool = False  # True if the body may be omitted
    query: Mapping[str, str] = field(default_factory=dict)  # parameter -> description
    streams: bool = False  # True if the body's field "stream" selects a response of server-sent events
    media: str = JSON  # content type of a non-streaming response; "" if the response is empty
