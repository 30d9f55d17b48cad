"""GET /pressure, and error replies under memory pressure."""

from __future__ import annotations

from typing import Any

import pytest

from ebbtide.messages import AbortReq, GenerateReq, PressureEvent, PressureVictim, Stats
from ebbtide.server.metrics.pressure_log import NUM_EVENTS, PressureLog

from ..conftest import World

pytestmark = pytest.mark.anyio

VICTIM = PressureVictim("r1", 5, 20, 32, 25, 1, offloaded=True)
EVENT = PressureEvent(9, "memory", [VICTIM], 0, 32, 0.7, 0.9, 4, 2)
EMPTY = {"available": 0, "evictable": 0, "protected": 0, "session_held": 0, "uncached": 0, "total": 0}


async def pressure(world: World) -> Any:
    reply = await world.client.get("/pressure")
    assert reply.status_code == 200
    return reply.json()


async def test_before_the_first_snapshot_everything_reads_zero(world: World) -> None:
    assert await pressure(world) == {
        "num_running_reqs": 0,
        "num_queue_reqs": 0,
        "num_retracted_reqs": 0,
        "new_token_ratio": 0.0,
        "token_usage": 0.0,
        "max_total_num_tokens": 0,
        "pools": {"full": EMPTY},
        "num_events_total": 0,
        "events": [],
    }


async def test_every_pool_of_the_last_snapshot_is_shown(world: World) -> None:
    full = {"available": 160, "evictable": 32, "protected": 16, "session_held": 0, "uncached": 48}
    host = {"available": 96, "uncached": 32}
    gauges = {f"kv_{part}_tokens{{pool=full}}": float(value) for part, value in full.items()}
    gauges |= {f"kv_{part}_tokens{{pool=host}}": float(value) for part, value in host.items()}
    gauges["kv_quarantined_tokens{pool=full}"] = 16.0
    gauges |= {"num_running_reqs": 3.0, "num_queue_reqs": 2.0, "num_retracted_reqs": 1.0}
    gauges |= {"new_token_ratio": 0.5, "token_usage": 0.25, "max_total_num_tokens": 256.0}
    world.state.metrics.apply_stats(Stats(gauges, {}, {}))
    shown = await pressure(world)
    assert shown["pools"] == {
        "full": {**full, "quarantined": 16, "total": 256},
        "host": {**EMPTY, **host, "total": 128},
    }
    assert (shown["num_running_reqs"], shown["num_queue_reqs"], shown["num_retracted_reqs"]) == (3, 2, 1)
    assert (shown["new_token_ratio"], shown["token_usage"], shown["max_total_num_tokens"]) == (0.5, 0.25, 256)
    world.state.metrics.on_scheduler_death()
    gone = await pressure(world)
    assert gone["num_running_reqs"] == gone["new_token_ratio"] == gone["max_total_num_tokens"] == 0
    assert gone["pools"] == {"full": {**EMPTY, "quarantined": 0}, "host": EMPTY}


async def test_an_event_is_shown_in_full_with_its_arrival_time(world: World) -> None:
    times = iter([100.5, 101.25])
    log = PressureLog(lambda: next(times))
    log.add(EVENT)
    log.add(PressureEvent(10, "memory", [], 0, 16, 0.9, 0.9, 1, 0, aborted="r2"))
    first, second = log.events()
    assert first == {
        "number": 1,
        "time": 100.5,
        "step": 9,
        "cause": "memory",
        "victims": [
            {
                "rid": "r1",
                "num_output_tokens": 5,
                "prompt_tokens": 20,
                "freed_tokens": 32,
                "tokens_to_recompute": 25,
                "num_retractions": 1,
                "offloaded": True,
                "outcome": None,
                "waited_s": None,
            }
        ],
        "available_before": 0,
        "pool": "full",
        "available_after": 32,
        "ratio_before": 0.7,
        "ratio_after": 0.9,
        "num_running": 4,
        "num_waiting": 2,
        "aborted": None,
    }
    assert (second["time"], second["aborted"], second["victims"]) == (101.25, "r2", [])
    world.state.pressure.add(EVENT)
    [shown] = (await pressure(world))["events"]
    assert {**shown, "time": 100.5} == first


async def test_only_the_last_events_are_kept_and_all_are_counted(world: World) -> None:
    for step in range(NUM_EVENTS + 3):
        world.state.pressure.add(PressureEvent(step, "test", [], 0, 0, 0.7, 0.7, 1, 0))
    shown = await pressure(world)
    assert [event["step"] for event in shown["events"]] == list(range(3, NUM_EVENTS + 3))
    assert shown["num_events_total"] == NUM_EVENTS + 3


@pytest.mark.parametrize("stream", [False, True])
async def test_a_full_queue_is_429_with_retry_after(world: World, stream: bool) -> None:
    def answer(request: GenerateReq) -> None:
        refusal = AbortReq(request.rids[0], "queue_full", 429, "queue_full", "2 requests wait", retry_after_s=2.2)
        world.state.manager.handle(refusal)

    world.engine.answer = answer
    reply = await world.chat(stream=stream)
    assert reply.status_code == 429
    assert reply.headers["retry-after"] == "3"
    assert "x-should-retry" not in reply.headers
    error = reply.json()["error"]
    assert (error["type"], error["code"], error["message"]) == ("rate_limit_error", "queue_full", "2 requests wait")


@pytest.mark.parametrize("stream", [False, True])
async def test_an_exhausted_pool_is_500_without_retry(world: World, stream: bool) -> None:
    world.engine.answer = lambda request: world.engine.abort(request.rids[0])
    reply = await world.complete(stream=stream)
    assert reply.status_code == 500
    assert reply.headers["x-should-retry"] == "false"
    assert "retry-after" not in reply.headers
    error = reply.json()["error"]
    assert (error["type"], error["code"]) == ("server_error", "kv_cache_exhausted")
