"""Builds the OpenAPI schema from the route table: parameters, body, responses and errors of each route."""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from typing import Any

import msgspec
from fastapi import FastAPI

from ..route import JSON, Route
from .auth import PUBLIC_PATHS
from .error_replies import ErrorFormats

SCHEMAS = "#/components/schemas/"
EVENTS = "text/event-stream"
KEY_SCHEMES = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
}


class ErrorFields(msgspec.Struct):
    """The fields of an error object."""

    message: str
    type: str
    param: str | None  # the request field that caused the error
    code: str | None  # a stable identifier for programs


class Error(msgspec.Struct):
    """The body of an error response."""

    error: ErrorFields


def operation(route: Route, formats: ErrorFormats) -> dict[str, Any]:
    """Return the arguments of FastAPI's ``add_api_route`` that describe a route."""
    summary, _, rest = (inspect.getdoc(route.endpoint) or "").partition("\n")
    content = _error_content(route, formats)
    refused = {"description": "The request is invalid or not allowed; the error object contains the reason.", **content}
    failed = {"description": "The server is unavailable or has failed.", **content}
    return {
        "summary": summary,
        "description": rest.strip(),
        "tags": ["admin" if route.is_admin else "OpenAI and sessions" if route.path.startswith("/v1/") else "server"],
        "openapi_extra": _parameters(route) | _body(route),
        "responses": {200: _success(route), "4XX": refused, "5XX": failed},
    }


def describe(app: FastAPI, table: Sequence[Route], *, key_required: bool) -> None:
    """Add the body types of the routes to /openapi.json, and also the key schemes if API keys are required."""
    plain_schema = app.openapi

    # The schema is computed on the first call, because computing it takes as long as building the application.
    def complete() -> dict[str, Any]:
        if app.openapi_schema is not None:
            return app.openapi_schema
        schema = plain_schema()
        bodies = {route.body for route in table if route.body is not None}
        _, components = msgspec.json.schema_components([*bodies, Error], ref_template=SCHEMAS + "{name}")
        parts = schema.setdefault("components", {})
        parts.setdefault("schemas", {}).update(components)
        if key_required:
            parts["securitySchemes"] = KEY_SCHEMES
            schema["security"] = [{name: []} for name in KEY_SCHEMES]
            for path in PUBLIC_PATHS & schema["paths"].keys():
                schema["paths"][path]["get"]["security"] = []
        return schema

    app.openapi = complete  # type: ignore[method-assign]  # FastAPI's documented way to extend the schema


def _parameters(route: Route) -> dict[str, Any]:
    in_path = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in re.findall(r"{(\w+)", route.path)
    ]
    in_query = [
        {"name": name, "in": "query", "required": False, "schema": {"type": "string"}, "description": text}
        for name, text in route.query.items()
    ]
    return {"parameters": in_path + in_query} if in_path or in_query else {}


def _body(route: Route) -> dict[str, Any]:
    if route.body is None:
        return {}
    content = {JSON: {"schema": {"$ref": SCHEMAS + route.body.__name__}}}
    return {"requestBody": {"required": not route.optional, "content": content}}


def _success(route: Route) -> dict[str, Any]:
    content: dict[str, Any] = {route.media: {}} if route.media else {}
    if route.streams:
        content[EVENTS] = {}
    return {"description": "The response.", "content": content}


def _error_content(route: Route, formats: ErrorFormats) -> dict[str, Any]:
    if any(route.path.startswith(start) for start in formats):
        return {"content": {JSON: {}}}  # errors of this path have the format of another API
    return {"content": {JSON: {"schema": {"$ref": SCHEMAS + "Error"}}}}
