"""The render routes: the tokens and parameters with which the same request runs, in the fields that routers read."""

from __future__ import annotations

from typing import Any

import pytest

from ...conftest import World

pytestmark = pytest.mark.anyio
HI = [{"role": "user", "content": "hi"}]


async def render(world: World, path: str, **body: Any) -> Any:
    reply = await world.client.post(f"{path}/render", json=body, headers={"x-request-id": "mine"})
    assert reply.status_code == 200, reply.text
    return reply.json()


async def test_a_chat_is_rendered_as_it_runs(world: World) -> None:
    fields = {"temperature": 0.5, "max_tokens": 9, "seed": 3, "stop": "x", "logit_bias": {"5": 1}, "cache_salt": "mine"}
    shown = await render(world, "/v1/chat/completions", messages=HI, stream=True, **fields)
    assert world.engine.requests == [], "nothing runs"
    await world.chat(**fields)
    [request] = world.engine.requests
    assert shown["token_ids"] == request.prompt
    assert {name: shown[name] for name in ("request_id", "model", "stream", "cache_salt", "priority")} == {
        "request_id": "chatcmpl-mine",
        "model": "org/sim",
        "stream": True,
        "cache_salt": "mine",
        "priority": 0,
    }
    sampling = shown["sampling_params"]
    assert (sampling["temperature"], sampling["max_tokens"], sampling["seed"]) == (0.5, 9, 3)
    assert (sampling["stop"], sampling["n"], sampling["logit_bias"]) == (["x"], 1, {"5": 1.0})


async def test_each_prompt_of_a_completion_is_rendered(world: World) -> None:
    first, second = await render(world, "/v1/completions", prompt=["hi", "there"])
    assert (first["token_ids"], second["token_ids"]) == ([*b"hi"], [*b"there"])
    [ids] = await render(world, "/v1/completions", prompt=[1, 2, 3], max_tokens=5)
    assert (ids["token_ids"], ids["sampling_params"]["max_tokens"]) == ([1, 2, 3], 5)
    assert world.engine.requests == []
    assert world.state.manager.num_open == 0


async def test_a_response_is_rendered_as_it_runs(world: World) -> None:
    fields = {"instructions": "Be short.", "input": "hi", "max_output_tokens": 9, "seed": 3, "cache_salt": "mine"}
    shown = await render(world, "/v1/responses", **fields)
    assert world.engine.requests == [], "nothing runs"
    assert (await world.client.post("/v1/responses", json=fields)).status_code == 200
    [request] = world.engine.requests
    assert shown["token_ids"] == request.prompt
    assert (shown["request_id"], shown["stream"], shown["cache_salt"]) == ("resp-mine", False, "mine")
    assert (shown["sampling_params"]["max_tokens"], shown["sampling_params"]["seed"]) == (9, 3)


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/chat/completions", {}, "messages"),
        ("/v1/chat/completions", {"messages": HI, "temperature": 9}, "temperature"),
        ("/v1/chat/completions", {"messages": HI, "session_id": "s"}, "session_id"),
        ("/v1/completions", {"prompt": "x", "suffix": "y"}, "suffix"),
        ("/v1/responses", {"input": "x", "session_id": "s"}, "session_id"),
        ("/v1/completions", {"prompt": "x" * 600, "max_tokens": 1}, None),
    ],
)
async def test_a_request_that_could_not_run_is_refused(
    world: World, path: str, body: dict[str, Any], param: str | None
) -> None:
    reply = await world.client.post(f"{path}/render", json=body)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)
