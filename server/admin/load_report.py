"""GET /v1/loads and /get_load: load figures for load balancers, from the scheduler's last snapshot."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from ebbtide import __version__
from ebbtide.errors import Rejected

from ..metrics.metrics import CONTENT_TYPE
from ..state import AppState
from .pressure import load_summary

SECTIONS = ("core", "memory", "queues")
EMPTY_SECTIONS = ("spec", "lora", "disagg")  # accepted for compatibility; these sections are always empty

LOADS_QUERY = {
    "include": "Comma-separated sections: all, core, memory, queues.",
    "format": "json or prometheus.",
}


@dataclass(frozen=True, slots=True)
class LoadsRoute:
    """The routes and the state they read."""

    state: AppState

    async def brief(self, _: Request) -> Response:
        """Show the current load in SGLang's older format: one entry per data-parallel rank, here always one entry."""
        load = load_of(self.state)
        waiting = load["num_waiting_reqs"]
        entry = {"dp_rank": 0, "num_reqs": load["num_running_reqs"] + waiting, "num_waiting_reqs": waiting}
        return JSONResponse([{**entry, "num_tokens": load["num_used_tokens"]}])

    async def show(self, request: Request) -> Response:
        """Show the current load. ``?include=core,memory`` selects sections, ``?format=prometheus`` the format."""
        sections = _sections(request.query_params.getlist("include"))
        form = request.query_params.get("format", "json")
        load = load_of(self.state)
        if form == "prometheus":
            return Response(_prometheus(load, self.state.model_name), headers={"content-type": CONTENT_TYPE})
        if form != "json":
            raise Rejected(f"'format' must be json or prometheus, not {form[:50]!r}.", param="format")
        shown: dict[str, Any] = {"dp_rank": 0, **(load if "core" in sections else {})}
        bar = load_summary(self.state.metrics.gauges)
        if "memory" in sections:
            shown["memory"] = {"pool_bytes": self.state.info.pool_bytes, "pools": bar["pools"]}
        if "queues" in sections:
            shown["queues"] = {"waiting": bar["num_queue_reqs"], "retracted": bar["num_retracted_reqs"]}
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        head = {"timestamp": now, "version": __version__, "accelerator": self.state.info.device}
        return JSONResponse({**head, "loads": [shown]})


def load_of(state: AppState) -> dict[str, float]:
    """Return the fields of the section "core". Load figures are 0 if there is no scheduler."""
    bar, gauges = load_summary(state.metrics.gauges), state.metrics.gauges
    num_rows = state.info.num_rows
    return {
        "num_running_reqs": bar["num_running_reqs"],
        "num_waiting_reqs": bar["num_queue_reqs"],
        "num_used_tokens": round(bar["token_usage"] * bar["max_total_num_tokens"]),
        "max_total_num_tokens": bar["max_total_num_tokens"],
        "token_usage": bar["token_usage"],
        "expected_wait_s": gauges.get("expected_queue_seconds", 0.0),
        "gen_throughput": gauges.get("gen_throughput", 0.0),
        "cache_hit_rate": state.metrics.hit_rate,
        "utilization": bar["num_running_reqs"] / num_rows,
        "max_running_requests": num_rows,
    }


def _sections(asked: list[str]) -> set[str]:
    """Return the selected sections; all sections if the query names none. Raises Rejected if a section is unknown."""
    names = {name.strip() for entry in asked for name in entry.split(",") if name.strip()}
    for name in names.difference(SECTIONS, EMPTY_SECTIONS, ("all",)):
        known = ", ".join(("all", *SECTIONS))
        raise Rejected(f"'include' has the unknown section {name[:50]!r}; the sections are {known}.", param="include")
    return set(SECTIONS) if not names or "all" in names else names


def _prometheus(load: dict[str, float], model_name: str) -> str:
    escaped = model_name.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    lines = []
    for name, value in load.items():
        full = f"ebbtide:load_{name}"
        lines += [f"# TYPE {full} gauge", f'{full}{{model_name="{escaped}",dp_rank="0"}} {value}']
    return "\n".join(lines) + "\n"
