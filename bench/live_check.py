"""Plays one load through a daemon with the simulated model, on the real clock, and through `ebbtide simulate`.

    python bench/live_check.py [--mixes chat bursty azure-conversation] [--requests 100] [--slowdown 2] [--json FILE]

Both use the same requests, pool and step durations, and each request has the output length of the load in both. Prints
goodput, p99 latency and recomputed share of both, and their ratios. A larger slowdown multiplies all durations, so that
a slow or busy machine can keep up.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import sys
import tempfile
import time
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path

import aiohttp
from daemon import Daemon

from ebbtide.commands.results import percentile
from ebbtide.commands.simulation.measure import Case, demand_tokens, simulate
from ebbtide.commands.simulation.mixes import MIXES, build, rate_for
from ebbtide.commands.simulation.trace import TraceRequest
from ebbtide.commands.simulation.virtual import Machine, max_tokens_of
from ebbtide.step_cost import StepCost

RULE = "cost"  # the default of --retract-policy
COUNTERS = ("num_retracted_requests_total", "num_recomputed_tokens_total", "num_delayed_rows_total")


@dataclass(frozen=True)
class Measured:
    """The result of one load. Times are in seconds."""

    goodput: float
    latency_p50_s: float
    latency_p99_s: float
    recomputed_share: float
    retractions: int
    completed: int


@dataclass(frozen=True)
class Answer:
    """One completed request."""

    latency_s: float
    ended_s: float  # since the start of the load
    num_outputs: int


def machine_for(slowdown: float) -> Machine:
    """Return the default machine with steps that take ``slowdown`` times as long."""
    cost = StepCost(*(value * slowdown for value in asdict(StepCost()).values()))
    return Machine(memory_check="off", cost=cost)


def expect(requests: list[TraceRequest], machine: Machine, pool: int) -> Measured:
    """Return what `ebbtide simulate` computes."""
    summary = simulate(requests, machine, Case(RULE, 1.0, pool, 0.0)).summary
    return Measured(**{name: getattr(summary, name) for name in Measured.__dataclass_fields__})


def prompt_of(index: int, request: TraceRequest) -> list[int]:
    """Return the token ids, which are bytes: the shared prefix, the name of the request, and filler."""
    prefix = (f"<{request.prefix_id}>".encode() * request.prefix_len)[: request.prefix_len]
    own = name_of(index).ljust(request.prompt_len - request.prefix_len, "x")
    assert len(prefix) + len(own) == request.prompt_len, f"request {index} is too short for its name"
    return [*prefix, *own.encode()]


def name_of(index: int) -> str:
    """Return the part of the prompt by which the simulated model finds the output."""
    return f"#{index}#"


def script_for(requests: list[TraceRequest]) -> list[dict[str, object]]:
    """Return the outputs for `--sim-script`. The end token is the last token of an output."""
    return [
        {"contains": [name_of(index)], "output": "y" * (request.output_len - 1)}
        for index, request in enumerate(requests)
    ]


def start(machine: Machine, pool: int, script: Path) -> Daemon:
    """Start a daemon that is the simulated machine."""
    cost = machine.cost
    numbers = {
        "--max-total-tokens": pool,
        "--page-size": machine.page_size,
        "--max-running-requests": machine.num_rows,
        "--chunked-prefill-size": machine.chunk,
        "--context-length": machine.context_length,
        "--sim-step-ms": cost.base_s * 1e3,
        "--sim-decode-row-us": cost.decode_row_s * 1e6,
        "--sim-prefill-token-us": cost.prefill_token_s * 1e6,
        "--sim-context-token-ns": cost.context_token_s * 1e9,
    }
    flags = [part for flag, value in numbers.items() for part in (flag, f"{value:.10g}")]
    return Daemon(*flags, "--sim-script", str(script), "--log-level", "error", model="sim")


async def play(url: str, requests: list[TraceRequest], machine: Machine, pool: int) -> Measured:
    """Send each request at its arrival time."""
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(url, connector=connector, timeout=aiohttp.ClientTimeout()) as http:
        started = time.monotonic()

        async def one(index: int, request: TraceRequest) -> Answer:
            limit = max_tokens_of(request, machine.context_length, pool)
            body = {"model": "sim", "prompt": prompt_of(index, request), "max_tokens": limit, "temperature": 0}
            await asyncio.sleep(max(started + request.arrival_s - time.monotonic(), 0))
            async with http.post("/v1/completions", json=body) as reply:
                assert reply.status == 200, await reply.text()
                usage = (await reply.json())["usage"]
            ended = time.monotonic() - started
            return Answer(ended - request.arrival_s, ended, usage["completion_tokens"])

        answers = await asyncio.gather(*(one(index, request) for index, request in enumerate(requests)))
        async with http.get("/metrics") as reply:
            totals = counters_in(await reply.text())
    return summarise(requests, answers, totals)


def summarise(requests: list[TraceRequest], answers: list[Answer], totals: dict[str, float]) -> Measured:
    """Return the statistics of the daemon's run."""
    wrong = [
        index
        for index, (request, answer) in enumerate(zip(requests, answers, strict=True))
        if answer.num_outputs not in (request.num_outputs, request.num_outputs - 1)  # usage may omit the end token
    ]
    assert not wrong, f"requests {wrong[:5]} have outputs of a wrong length"
    latencies = sorted(answer.latency_s for answer in answers)
    duration_s = max(answer.ended_s for answer in answers) - requests[0].arrival_s
    outputs = sum(request.num_outputs for request in requests)
    recomputed = totals["num_recomputed_tokens_total"]
    cached = totals["cached_tokens_total"]
    computed = sum(request.prompt_len + request.num_outputs - 1 for request in requests) - cached + recomputed
    return Measured(
        goodput=outputs / duration_s,
        latency_p50_s=percentile(latencies, 50),
        latency_p99_s=percentile(latencies, 99),
        recomputed_share=recomputed / computed,
        retractions=round(totals["num_retracted_requests_total"]),
        completed=len(answers),
    )


def counters_in(text: str) -> dict[str, float]:
    """Return the counters without labels other than the model's name, by name."""
    found = {}
    for line in text.splitlines():
        if line.startswith("ebbtide:"):
            name, _, value = line.removeprefix("ebbtide:").rpartition(" ")
            found[name.partition("{")[0]] = float(value)
    return found


def check(mix: str, args: argparse.Namespace) -> dict[str, object]:
    """Run one mix in both ways."""
    machine = machine_for(args.slowdown)
    rate = rate_for(MIXES[mix], args.load, machine.cost, machine.num_rows)
    requests = build(MIXES[mix], args.requests, args.seed, rate)
    pool = int(demand_tokens(requests, machine) * args.pool)
    expected = expect(requests, machine, pool)
    with tempfile.NamedTemporaryFile("w", suffix=".json") as script:
        json.dump(script_for(requests), script)
        script.flush()
        with closing(start(machine, pool, Path(script.name))) as daemon:
            measured = asyncio.run(play(daemon.url, requests, machine, pool))
    return {"mix": mix, "pool": pool, "simulated": asdict(expected), "daemon": asdict(measured)}


def row(result: dict[str, object]) -> str:
    """Return one line of the table."""
    simulated, daemon = result["simulated"], result["daemon"]
    assert isinstance(simulated, dict)
    assert isinstance(daemon, dict)
    ratios = [
        f"{daemon[name]:.1f} / {simulated[name]:.1f} = {daemon[name] / simulated[name]:.3f}"
        for name in ("goodput", "latency_p50_s", "latency_p99_s")
    ]
    shares = f"{100 * daemon['recomputed_share']:.2f} / {100 * simulated['recomputed_share']:.2f}"
    completed = f"{daemon['completed']} / {simulated['completed']}"
    return "| " + " | ".join([str(result["mix"]), *ratios, shares, completed]) + " |"


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    mixes = sorted(set(MIXES) - {"sessions", "leaving", "priorities"})
    parser.add_argument("--mixes", nargs="+", choices=mixes, default=["chat", "bursty", "azure-conversation"])
    parser.add_argument("--requests", type=int, default=100)
    parser.add_argument("--load", type=float, default=0.9)
    parser.add_argument("--pool", type=float, default=0.6, help="fraction of the demand")
    parser.add_argument("--slowdown", type=float, default=2.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    logging.getLogger("ebbtide.scheduler").setLevel(logging.CRITICAL)
    print("| mix | tokens/s: daemon / simulated | p50 latency, s | p99 latency, s | recomputed % | completed |")
    print("|---|---|---|---|---|---|")
    results = []
    for mix in args.mixes:
        results.append(check(mix, args))
        print(row(results[-1]), flush=True)
    load = f"load average {os.getloadavg()[0]:.1f} at the end"
    print(f"\n{args.requests} requests, slowdown {args.slowdown:g}, pool {args.pool:.0%} of the demand, {load}")
    if args.json:
        args.json.write_text(json.dumps({"argv": sys.argv[1:], "results": results}, indent=2) + "\n")


if __name__ == "__main__":
    main()
