"""/openapi.json is complete, valid and correct for every route."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest

from ebbtide.config import AccessConfig, ServerConfig
from ebbtide.server.app import create_app, routes
from ebbtide.server.http.access import access_from

from ..conftest import ScriptedEngine, World, build_state

pytestmark = pytest.mark.anyio
HTTP_METHODS = {"get", "post", "delete", "put"}


@pytest.fixture
async def schema(world: World) -> dict[str, Any]:
    reply = await world.client.get("/openapi.json")
    assert reply.status_code == 200
    return dict(reply.json())


def operations(schema: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, item in schema["paths"].items():
        for method, operation in item.items():
            yield method, path, operation


async def test_every_route_is_described_and_nothing_else(world: World, schema: dict[str, Any]) -> None:
    shown = {(method.upper(), path) for method, path, _ in operations(schema)}
    assert shown == {(route.method, route.path.replace(":path}", "}")) for route in routes(world.state)}
    ids = [operation["operationId"] for _, _, operation in operations(schema)]
    assert len(set(ids)) == len(ids)


async def test_every_operation_says_what_it_does_and_how_it_fails(schema: dict[str, Any]) -> None:
    for method, path, operation in operations(schema):
        assert operation["summary"], (method, path)
        assert operation["tags"]
        answers = operation["responses"]
        assert set(answers) == {"200", "4XX", "5XX"}, "no route answers with FastAPI's own errors"
        assert all(answer["description"] for answer in answers.values())
        assert all(answers[status]["content"] for status in ("4XX", "5XX"))
        if not path.startswith("/v1/messages"):
            for status in ("4XX", "5XX"):
                reference = answers[status]["content"]["application/json"]["schema"]["$ref"]
                assert reference == "#/components/schemas/Error"


async def test_path_parameters_and_bodies_are_declared(world: World, schema: dict[str, Any]) -> None:
    for _, path, operation in operations(schema):
        declared = {entry["name"] for entry in operation.get("parameters", []) if entry["in"] == "path"}
        assert declared == {part.strip("{}") for part in path.split("/") if part.startswith("{")}
    for route in routes(world.state):
        operation = schema["paths"][route.path.replace(":path}", "}")][route.method.lower()]
        assert ("requestBody" in operation) == (route.body is not None)
    assert not schema["paths"]["/pause_generation"]["post"]["requestBody"]["required"]
    assert schema["paths"]["/v1/completions"]["post"]["requestBody"]["required"]
    assert {entry["name"] for entry in schema["paths"]["/v1/loads"]["get"]["parameters"]} == {"include", "format"}


async def test_a_stream_is_documented_if_the_body_has_a_stream_field(schema: dict[str, Any]) -> None:
    for path, streams in (("/v1/chat/completions", True), ("/generate", True), ("/tokenize", False)):
        assert ("text/event-stream" in schema["paths"][path]["post"]["responses"]["200"]["content"]) == streams


async def test_an_empty_response_is_documented_as_empty(world: World, schema: dict[str, Any]) -> None:
    assert not schema["paths"]["/close_session"]["post"]["responses"]["200"].get("content")
    assert set(schema["paths"]["/flush_cache"]["post"]["responses"]["200"]["content"]) == {"text/plain"}


async def test_every_type_is_a_valid_schema_and_every_reference_resolves(schema: dict[str, Any]) -> None:
    types = schema["components"]["schemas"]
    for name, definition in types.items():
        jsonschema.Draft202012Validator.check_schema(definition)
        assert name
    references = {part.partition('"')[0] for part in json.dumps(schema).split('"$ref": "')[1:]}
    assert references
    assert all(reference.removeprefix("#/components/schemas/") in types for reference in references)


async def test_an_error_has_the_described_form(world: World, schema: dict[str, Any]) -> None:
    reply = await world.client.post("/v1/completions", json={})
    types = {"$ref": "#/components/schemas/Error", "components": schema["components"]}
    jsonschema.validate(reply.json(), types)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"error": "flat"}, types)


async def test_keys_are_documented_if_required(
    world: World, engine: ScriptedEngine, config: ServerConfig, schema: dict[str, Any]
) -> None:
    assert "security" not in schema
    state = build_state(engine, config, access=access_from(AccessConfig(api_key=("right",))))
    import httpx

    transport = httpx.ASGITransport(create_app(state))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        guarded = (await client.get("/openapi.json", headers={"x-api-key": "right"})).json()
    state.prompts.close()
    assert guarded["security"] == [{"bearer": []}, {"x-api-key": []}]
    opened = [path for _, path, operation in operations(guarded) if operation.get("security") == []]
    assert sorted(opened) == ["/health", "/health_generate", "/metrics", "/ready"]
