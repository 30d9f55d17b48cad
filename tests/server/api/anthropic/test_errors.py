"""All errors below /v1/messages have Anthropic's format."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from ebbtide.config import AccessConfig, ServerConfig
from ebbtide.errors import Rejected
from ebbtide.server.api.anthropic.errors import anthropic_error
from ebbtide.server.app import create_app
from ebbtide.server.daemon.loading import AppSwitch
from ebbtide.server.http.access import access_from

from ...conftest import ScriptedEngine, build_state

pytestmark = pytest.mark.anyio


def client_of(app: Any) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url="http://test")


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"),
        (401, "authentication_error"),
        (403, "permission_error"),
        (404, "not_found_error"),
        (409, "invalid_request_error"),
        (413, "request_too_large"),
        (415, "invalid_request_error"),
        (429, "rate_limit_error"),
        (500, "api_error"),
        (503, "overloaded_error"),
        (504, "timeout_error"),
    ],
)
def test_the_type_follows_from_the_status(status: int, kind: str) -> None:
    error = Rejected("No.", status=status, code="some_code", param="field")
    assert anthropic_error(error) == {"type": "error", "error": {"type": kind, "message": "No."}}


@pytest.mark.parametrize("root_path", ["", "/llm"])
async def test_a_missing_key_and_an_unknown_route_are_answered_in_the_form_of_their_api(
    engine: ScriptedEngine, config: ServerConfig, root_path: str
) -> None:
    access = access_from(AccessConfig(api_key=("key",), root_path=root_path))
    state = build_state(engine, config, access=access)
    async with client_of(create_app(state)) as client:
        for headers, kind in (({}, "authentication_error"), ({"x-api-key": "key"}, "not_found_error")):
            reply = await client.post(f"{root_path}/v1/messages/nothing", headers=headers)
            assert reply.json() == {
                "type": "error",
                "error": {"type": kind, "message": reply.json()["error"]["message"]},
            }
            for path in ("/v1/messagesx", "/v1/chat/nothing"):
                body = (await client.post(root_path + path, headers=headers)).json()
                assert set(body) == {"error"}
                assert set(body["error"]) == {"message", "type", "param", "code"}
    state.prompts.close()


async def test_a_server_that_is_loading_answers_in_the_form_of_the_api() -> None:
    async with client_of(AppSwitch()) as client:
        reply = await client.post("/v1/messages")
    assert reply.status_code == 503
    assert reply.json()["error"]["type"] == "overloaded_error"
    assert reply.json()["type"] == "error"
