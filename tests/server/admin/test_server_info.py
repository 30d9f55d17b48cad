"""The routes that describe the server and its load."""

from __future__ import annotations

import json
import re

import pytest
from prometheus_client.parser import text_string_to_metric_families

from ebbtide import __version__
from ebbtide.config import AccessConfig, ServeConfig
from ebbtide.messages import Stats
from ebbtide.server.admin.server_info import public_settings
from ebbtide.server.app import routes

from ..conftest import Served, World

pytestmark = pytest.mark.anyio

GAUGES = {
    "num_running_reqs": 2,
    "num_queue_reqs": 3,
    "num_retracted_reqs": 1,
    "token_usage": 0.5,
    "max_total_num_tokens": 1_234_567,
    "gen_throughput": 12.5,
    "kv_available_tokens{pool=full}": 1_000_000,
    "kv_evictable_tokens{pool=full}": 234_567,
}


@pytest.fixture
def loaded(world: World) -> World:
    world.state.metrics.apply_stats(Stats(GAUGES, {"prompt_tokens_total": 10, "cached_tokens_total": 4}, {}))
    return world


@pytest.mark.parametrize("path", ["/server_info", "/get_server_info"])
async def test_server_info_has_what_bench_tools_read(loaded: World, path: str) -> None:
    info = (await loaded.client.get(path)).json()
    assert (info["version"], info["status"], info["served_model_name"]) == (__version__, "ready", "org/sim")
    assert (info["max_total_num_tokens"], info["page_size"], info["max_running_requests"]) == (256, 16, 8)
    assert info["internal_states"][0]["last_gen_throughput"] == 12.5
    loaded.state.liveness.start_draining()
    assert (await loaded.client.get(path)).json()["status"] == "not ready"


@pytest.mark.parametrize("path", ["/model_info", "/get_model_info"])
async def test_model_info_describes_the_model(world: World, path: str) -> None:
    info = (await world.client.get(path)).json()
    assert (info["model_path"], info["is_generation"], info["context_length"]) == ("org/sim", True, 512)


async def test_the_version_is_that_of_the_package(world: World) -> None:
    assert (await world.client.get("/version")).json() == {"version": __version__}


def test_the_settings_show_no_secret_and_no_access_section() -> None:
    config = ServeConfig(access=AccessConfig(api_key=("s3cret",), admin_api_key="s3cret", ssl_keyfile="/etc/s3cret"))
    shown = public_settings(config)
    assert "s3cret" not in json.dumps(shown)
    assert "access" not in shown
    assert shown["scheduler"]["schedule_policy"] == "fcfs"


async def test_head_is_get_without_a_body(served: Served) -> None:
    """HEAD works on every GET route without side effects, and on the documentation."""
    import httpx

    paths = [re.sub(r"{.*}", "org/sim", route.path) for route in routes(served.state) if route.method == "GET"]
    async with httpx.AsyncClient(base_url=served.url) as client:
        for path in {*paths, "/docs", "/openapi.json"} - {"/flush_cache"}:
            head, get = await client.head(path), await client.get(path)
            assert (head.status_code, head.content) == (get.status_code, b""), path
            assert head.headers["content-type"] == get.headers["content-type"], path
        assert (await client.head("/")).status_code == 200
        assert (await client.head("/flush_cache")).status_code == 405, "it would not be harmless"


async def test_the_root_names_the_server_and_its_model(world: World) -> None:
    shown = (await world.client.get("/")).json()
    assert (shown["name"], shown["model"]) == ("ebbtide", "org/sim")


async def test_loads_show_the_figures_that_routers_read(loaded: World) -> None:
    body = (await loaded.client.get("/v1/loads")).json()
    assert {"timestamp", "version", "accelerator"} < set(body)
    [load] = body["loads"]
    assert (load["dp_rank"], load["num_running_reqs"], load["num_waiting_reqs"]) == (0, 2, 3)
    assert (load["num_used_tokens"], load["max_total_num_tokens"]) == (617284, 1_234_567)
    assert (load["utilization"], load["cache_hit_rate"], load["max_running_requests"]) == (0.25, 0.4, 8)
    assert load["queues"] == {"waiting": 3, "retracted": 1}
    assert load["memory"]["pools"]["full"]["available"] == 1_000_000


async def test_the_older_load_route_has_one_entry_per_rank(loaded: World) -> None:
    body = (await loaded.client.get("/get_load")).json()
    assert body == [{"dp_rank": 0, "num_reqs": 5, "num_waiting_reqs": 3, "num_tokens": 617284}]


@pytest.mark.parametrize(
    ("query", "keys"),
    [
        ("include=core", {"num_running_reqs"}),
        ("include=queues,memory", {"queues", "memory"}),
        ("include=queues&include=memory", {"queues", "memory"}),
        ("include=all", {"num_running_reqs", "queues", "memory"}),
        ("include=spec", set()),
    ],
)
async def test_loads_show_the_requested_sections(loaded: World, query: str, keys: set[str]) -> None:
    [load] = (await loaded.client.get(f"/v1/loads?{query}")).json()["loads"]
    assert keys == {"num_running_reqs", "queues", "memory"} & set(load)


@pytest.mark.parametrize(("query", "param"), [("include=core,other", "include"), ("format=xml", "format")])
async def test_unknown_sections_and_formats_are_refused(loaded: World, query: str, param: str) -> None:
    reply = await loaded.client.get(f"/v1/loads?{query}")
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)


async def test_loads_can_be_scraped(loaded: World) -> None:
    reply = await loaded.client.get("/v1/loads?format=prometheus")
    assert reply.headers["content-type"].startswith("text/plain; version=0.0.4")
    families = {family.name: family.samples[0] for family in text_string_to_metric_families(reply.text)}
    sample = families["ebbtide:load_max_total_num_tokens"]
    assert (sample.value, sample.labels) == (1_234_567, {"model_name": "org/sim", "dp_rank": "0"})
