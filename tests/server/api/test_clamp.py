"""--clamp-max-tokens: a limit of the output that exceeds the context, on every route."""

from __future__ import annotations

from typing import Any

import pytest

from ebbtide.config import ServerConfig

from ..conftest import LARGE_INFO, World

pytestmark = pytest.mark.anyio
RUNNER_INFO = LARGE_INFO  # the pool holds the context
HI = [{"role": "user", "content": "hi"}]
MESSAGES = "/v1/messages"
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": HI, "max_tokens": 32_000},
    "/v1/completions": {"prompt": "hi", "max_tokens": 32_000},
    "/v1/responses": {"input": "hi", "max_output_tokens": 32_000},
    "/generate": {"text": "hi", "sampling_params": {"max_new_tokens": 32_000}},
    MESSAGES: {"messages": HI, "max_tokens": 32_000},
}


def clamping(choice: Any) -> ServerConfig:
    return ServerConfig(keep_alive_s=0, clamp_max_tokens=choice)


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize(
    ("config", "clamped"),
    [(clamping("none"), []), (clamping("messages"), [MESSAGES]), (clamping("all"), list(BODIES))],
)
async def test_a_limit_beyond_the_context_is_reduced_where_the_flag_says_so(
    world: World, path: str, config: ServerConfig, clamped: list[str]
) -> None:
    reply = await world.client.post(path, json=BODIES[path])
    if path not in clamped:
        assert (reply.status_code, world.engine.requests) == (400, [])
        return
    assert reply.status_code == 200, reply.text
    [request] = world.engine.requests
    assert request.sampling.max_tokens == LARGE_INFO.context_length - len(request.prompt)


async def test_the_default_is_to_reduce_on_messages_only() -> None:
    assert ServerConfig().clamp_max_tokens == "messages"


@pytest.mark.parametrize("config", [clamping("all")])
async def test_a_limit_that_fits_stays(world: World, config: ServerConfig) -> None:
    await world.chat(max_tokens=7)
    await world.complete(max_tokens=7)
    await world.complete()
    assert [request.sampling.max_tokens for request in world.engine.requests] == [7, 7, 16]


@pytest.mark.parametrize("config", [clamping("all")])
async def test_a_prompt_that_fills_the_context_is_still_refused(world: World, config: ServerConfig) -> None:
    reply = await world.complete(prompt=[1] * LARGE_INFO.context_length, max_tokens=1)
    assert reply.json()["error"]["code"] == "context_length_exceeded"


@pytest.mark.parametrize("config", [clamping("all")])
async def test_a_turn_of_a_session_is_reduced_by_the_scheduler(world: World, config: ServerConfig) -> None:
    for path in ("/v1/chat/completions", "/v1/completions", "/generate"):
        assert (await world.client.post(path, json={**BODIES[path], "session_id": "s"})).status_code == 200
    assert all(request.session.context_limit for request in world.engine.requests)


async def test_a_reduced_answer_ends_with_max_tokens(world: World) -> None:
    world.engine.finish = "length"
    reply = await world.client.post(MESSAGES, json=BODIES[MESSAGES])
    assert reply.json()["stop_reason"] == "max_tokens"
