"""Compares admission rules on many loads with `ebbtide simulate`'s scheduler and virtual clock.

    python bench/pressure_study.py run study.jsonl --minutes 15 [--mixes chat …] [--pools 0.4 …] [--loads 0.9 …]
    python bench/pressure_study.py table study.jsonl
    python bench/pressure_study.py plot study.jsonl docs/pictures/admission.png    # needs matplotlib

`run` appends one line per case and skips the cases that the file contains, so that it can be interrupted and continued.
"""

from __future__ import annotations

import argparse
import json
import logging
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ebbtide.commands.simulation.measure import Case, demand_tokens, simulate
from ebbtide.commands.simulation.mixes import MIXES, build, rate_for
from ebbtide.commands.simulation.rules import POLICIES
from ebbtide.commands.simulation.virtual import Machine

OURS = "cost"
PARAMETERS = {
    "cost": [1.0],
    "length": [1.0],
    "vllm": [0.0, 0.05, 0.1],
    "sglang": [0.3, 1.0],
    "no-evict": [1.0],
    "oracle": [1.0],
}
BASELINES = ("vllm", "sglang", "no-evict")
POOLS = (0.3, 0.45, 0.6, 0.8, 1.0)
LOADS = (0.5, 0.9, 1.3)
Group = tuple[str, float, float, int]  # mix, load, pool, seed
Result = dict[str, Any]


def run(args: argparse.Namespace) -> None:
    """Simulate the cases that the file lacks, until the time is over."""
    logging.getLogger("ebbtide.scheduler").setLevel(logging.CRITICAL)
    done = {(*group_of(result), result["policy"], result["parameter"]) for result in read(args.file)}
    ends = time.monotonic() + 60 * args.minutes
    for seed in args.seeds:
        for load in args.loads:
            for mix in args.mixes:
                machine = Machine(memory_check="off", schedule_policy="priority" if mix == "priorities" else "fcfs")
                rate = rate_for(MIXES[mix], load, machine.cost, machine.num_rows)
                requests = build(MIXES[mix], args.requests, seed, rate)
                wanted = [case for case in cases(args.pools) if (mix, load, case[0], seed, *case[1:]) not in done]
                demand = demand_tokens(requests, machine) if wanted else 0
                for pool, policy, parameter in wanted:
                    if time.monotonic() > ends:
                        return
                    case = Case(policy, parameter, int(demand * pool), pool)
                    summary = asdict(simulate(requests, machine, case).summary)
                    key = {"mix": mix, "load": load, "pool": pool, "seed": seed}
                    with args.file.open("a") as file:
                        file.write(json.dumps({**key, "policy": policy, "parameter": parameter, **summary}) + "\n")


def cases(pools: list[float]) -> Iterator[tuple[float, str, float]]:
    """Yield pool, policy and parameter of every case."""
    for pool in pools:
        for policy, parameters in PARAMETERS.items():
            for parameter in parameters:
                yield pool, policy, parameter


def read(path: Path) -> list[Result]:
    """Return the results in the file; none if it does not exist."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines()]


def group_of(result: Result) -> Group:
    """Return the load and pool of a result."""
    return result["mix"], result["load"], result["pool"], result["seed"]


def label(result: Result) -> str:
    """Return the policy, with its parameter if it has several."""
    name = str(result["policy"])
    return name if len(PARAMETERS[name]) == 1 else f"{name} {result['parameter']:g}"


def groups(results: list[Result]) -> dict[Group, dict[str, Result]]:
    """Return the results by load and pool, then by policy. Incomplete groups are left out."""
    grouped: dict[Group, dict[str, Result]] = defaultdict(dict)
    for result in results:
        grouped[group_of(result)][label(result)] = result
    complete = sum(map(len, PARAMETERS.values()))
    return {group: found for group, found in sorted(grouped.items()) if len(found) == complete}


def beaten_by(ours: Result, found: dict[str, Result]) -> list[str]:
    """Return the rules that are better in recomputed share or p99 latency and not worse in the other."""
    mine = (ours["recomputed_share"], ours["latency_p99_s"])
    names = []
    for name, result in found.items():
        theirs = (result["recomputed_share"], result["latency_p99_s"])
        if result["policy"] in BASELINES and theirs != mine and theirs[0] <= mine[0] and theirs[1] <= mine[1]:
            names.append(name)
    return names


def table(args: argparse.Namespace) -> None:
    """Print each group and the totals."""
    grouped = groups(read(args.file))
    names = list(dict.fromkeys(name for found in grouped.values() for name in found))
    print("| mix | load | pool | seed | " + " | ".join(names) + " | better than ours |")
    print("|---" * (5 + len(names)) + "|")
    on_front = near = low_tax = large = 0
    for (mix, load, pool, seed), found in grouped.items():
        ours, oracle = found[OURS], found["oracle"]
        better = beaten_by(ours, found)
        cells = [f"{100 * found[name]['recomputed_share']:.2f} / {found[name]['latency_p99_s']:.1f}" for name in names]
        print(f"| {mix} | {load:g} | {pool:.0%} | {seed} | " + " | ".join(cells) + f" | {', '.join(better)} |")
        on_front += not better
        near += ours["latency_p99_s"] <= 1.03 * oracle["latency_p99_s"]
        if pool >= 0.6:
            large += 1
            low_tax += ours["recomputed_share"] <= 0.005
    print(f"\n{len(grouped)} loads and pools; on the Pareto front with the baselines: {on_front};")
    print(f"within 3 % of the oracle's p99: {near};")
    print(f"recomputed share at most 0.5 % at pools of 60 % or more: {low_tax} of {large}")


def plot(args: argparse.Namespace) -> None:
    """Plot the recomputed share, and p99 latency relative to the oracle, by pool size: averages over all mixes."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    grouped = groups(read(args.file))
    figure = Figure(figsize=(11, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    tax, latency = figure.subplots(1, 2)
    pools = sorted({group[2] for group in grouped})
    for name in ("cost", "vllm 0", "vllm 0.05", "sglang 0.3", "sglang 1", "no-evict"):
        taxes, latencies = [], []
        for pool in pools:
            found = [each for group, each in grouped.items() if group[2] == pool and group[1] == args.load]
            taxes.append(100 * mean([each[name]["recomputed_share"] for each in found]))
            latencies.append(median([each[name]["latency_p99_s"] / each["oracle"]["latency_p99_s"] for each in found]))
        title = "ebbtide" if name == OURS else name
        width = 2.2 if name == OURS else 1.0
        tax.plot([100 * pool for pool in pools], taxes, marker="o", markersize=3, linewidth=width, label=title)
        latency.plot([100 * pool for pool in pools], latencies, marker="o", markersize=3, linewidth=width, label=title)
    tax.set_ylabel("recomputed share of tokens, %, mean over mixes")
    latency.set_ylabel("p99 latency / oracle's, median over mixes")
    latency.set_ylim(0.9, 2.0)
    for axes in (tax, latency):
        axes.set_xlabel("pool, % of the demand")
        axes.legend(fontsize="small")
    figure.suptitle(f"load {args.load:g} of the machine's speed")
    figure.savefig(args.picture, dpi=80, format="png")


def mean(values: list[float]) -> float:
    """Return the mean."""
    return sum(values) / len(values)


def median(values: list[float]) -> float:
    """Return the middle value."""
    return sorted(values)[len(values) // 2]


def main() -> None:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    runs = commands.add_parser("run")
    runs.add_argument("file", type=Path)
    runs.add_argument("--minutes", type=float, default=15.0)
    runs.add_argument("--requests", type=int, default=300)
    runs.add_argument("--mixes", nargs="+", choices=MIXES, default=list(MIXES))
    runs.add_argument("--pools", nargs="+", type=float, default=list(POOLS))
    runs.add_argument("--loads", nargs="+", type=float, default=list(LOADS))
    runs.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    runs.set_defaults(call=run)
    tables = commands.add_parser("table")
    tables.add_argument("file", type=Path)
    tables.set_defaults(call=table)
    plots = commands.add_parser("plot")
    plots.add_argument("file", type=Path)
    plots.add_argument("picture", type=Path)
    plots.add_argument("--load", type=float, default=0.9)
    plots.set_defaults(call=plot)
    args = parser.parse_args()
    assert set(PARAMETERS) <= set(POLICIES)
    args.call(args)


if __name__ == "__main__":
    main()
