"""``ebbtide simulate``: compares pool sizes and policies by running the scheduler on a virtual clock.

This file contains the command line only. The scheduler is imported only when the command runs.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import StartupError
from ..intervals import integer_in, number_in
from ..retract_policies import RETRACT_POLICIES
from .arguments import add_value, count, count_or_0, seed
from .results import write_json

if TYPE_CHECKING:
    from ..step_cost import StepCost
    from .simulation.measure import Case
    from .simulation.output import Report
    from .simulation.trace import TraceRequest
    from .simulation.virtual import Machine

MIX_NAMES = (
    *("chat", "long-prompt", "long-output", "agents", "bursty", "known-output"),
    *("azure-conversation", "azure-code", "burstgpt", "sessions", "leaving", "priorities"),
)
POLICY_NAMES = (*RETRACT_POLICIES, "vllm", "sglang", "no-evict", "oracle")
COMPARED = ("length", "cost", "vllm", "sglang")
SWEPT = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of ``ebbtide simulate``."""
    _add_load(parser.add_argument_group("load"))
    _add_cases(parser.add_argument_group("cases: every combination of pool size, policy and admission parameter"))
    _add_machine(parser.add_argument_group("machine"))
    _add_cost(parser.add_argument_group("duration of a step (replace the defaults with your own measurements)"))
    group = parser.add_argument_group("output")
    group.add_argument("--json", type=Path, metavar="FILE", help="also write all results to this JSON file")
    group.add_argument("--plot", type=Path, metavar="FILE.png", help="plot pool use and queue length over time")
    group.add_argument(
        "--plot-front",
        type=Path,
        metavar="FILE.png",
        help="plot the recomputed share of tokens against the p99 latency, one line per policy",
    )


def _add_load(group: argparse._ArgumentGroup) -> None:
    source = group.add_mutually_exclusive_group()
    source.add_argument(
        "--trace", type=Path, metavar="FILE.jsonl", help="file of requests, one per line; see docs/simulate.md"
    )
    source.add_argument(
        "--mix", choices=MIX_NAMES, default="chat", help="synthetic load instead of a trace (default: chat)"
    )
    add_value(group, "--requests", integer_in("[1, 1000000]"), "400", "N", "number of requests of a mix")
    pace = group.add_mutually_exclusive_group()
    pace.add_argument("--rate", type=number_in("(0, 1000000]"), metavar="R", help="mean arrivals per second of a mix")
    load_help = "arrival rate of a mix as a fraction of the rate that the machine can sustain"
    add_value(pace, "--load", number_in("(0, 1000]"), "0.9", "X", load_help)
    add_value(group, "--seed", seed, "0", "N", "seed of a mix")


def _add_cases(group: argparse._ArgumentGroup) -> None:
    pool = group.add_mutually_exclusive_group()
    pool.add_argument("--pool", type=count, nargs="+", metavar="TOKENS", help="pool sizes in tokens")
    pool.add_argument(
        "--pool-fraction",
        type=number_in("(0, 1000]"),
        nargs="+",
        metavar="F",
        help="pool sizes as fractions of the demand, the load's peak KV use in an unlimited pool (default: 0.6)",
    )
    pool.add_argument("--sweep", action="store_true", help="use 30, 40, … 100 %% of the demand")
    group.add_argument(
        "--policy",
        choices=POLICY_NAMES,
        nargs="+",
        default=COMPARED,
        help="policies to compare (default: length, cost, vllm and sglang)",
    )
    group.add_argument(
        "--schedule-conservativeness",
        type=number_in("(0, 1000]"),
        nargs="+",
        default=[],
        metavar="X",
        help="admission parameter of all policies except vllm (default: 1)",
    )
    group.add_argument(
        "--watermark",
        type=number_in("[0, 1)"),
        nargs="+",
        default=[],
        metavar="F",
        help="admission parameter of vllm (default: 0)",
    )


def _add_machine(group: argparse._ArgumentGroup) -> None:
    add_value(group, "--page-size", count, "16", "TOKENS", "tokens per page")
    add_value(group, "--rows", integer_in("[1, 1048576]"), "64", "N", "maximum number of running requests")
    add_value(group, "--chunk", count, "2048", "TOKENS", "prefill tokens per step")
    add_value(group, "--context-length", count, "32768", "TOKENS", "maximum length of prompt plus output")
    group.add_argument(
        "--schedule-policy",
        choices=("fcfs", "lpm", "priority", "fair"),
        default="fcfs",
        help="order of the waiting queue (default: fcfs)",
    )
    add_value(
        group,
        "--max-retractions",
        integer_in("[-1, 2147483647]"),
        "3",
        "N",
        "as in ebbtide serve; no effect on vllm and sglang",
    )
    group.add_argument(
        "--headroom",
        type=count_or_0,
        metavar="PAGES",
        help="pages per running request freed beyond the next step's demand; no effect on vllm and sglang",
    )


def _add_cost(group: argparse._ArgumentGroup) -> None:
    add_value(group, "--step-ms", number_in("[0, 1000000000]"), "10", "MS", "base time of every step")
    add_value(group, "--decode-row-us", number_in("[0, 1000000000]"), "50", "US", "time per decoding row")
    add_value(group, "--prefill-token-us", number_in("[0, 1000000000]"), "50", "US", "time per prefilled token")
    add_value(group, "--context-token-ns", number_in("[0, 1000000000]"), "60", "NS", "time per token of context read")


def run(args: argparse.Namespace) -> int:
    """Simulate every case and print the table. Raises StartupError if a case cannot be simulated."""
    from .simulation.measure import demand_tokens, simulate
    from .simulation.output import Report, as_dict, print_report

    machine = _machine(args)
    requests = _requests(args, machine.cost)
    with _quiet_scheduler():
        demand = demand_tokens(requests, machine)
        outcomes = [simulate(requests, machine, case) for case in _cases(args, demand)]
    report = Report(_load_name(args), len(requests), requests[-1].arrival_s, demand, machine, outcomes)
    print_report(report)
    if args.json is not None:
        write_json(as_dict(report), args.json)
    _plot(args, report)
    return 0


@contextmanager
def _quiet_scheduler() -> Iterator[None]:
    """Suppress the scheduler's warnings about retractions during the block."""
    logger = logging.getLogger("ebbtide.scheduler")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def _plot(args: argparse.Namespace, report: Report) -> None:
    if args.plot is None and args.plot_front is None:
        return
    from .simulation.plot import plot_front, plot_usage

    if args.plot is not None:
        plot_usage(report, args.plot)
    if args.plot_front is not None:
        plot_front(report, args.plot_front)


def _machine(args: argparse.Namespace) -> Machine:
    from ..step_cost import StepCost
    from .simulation.virtual import Machine

    if not (args.step_ms or (args.decode_row_us and args.prefill_token_us)):
        raise StartupError("A step must take time: give --step-ms, or both --decode-row-us and --prefill-token-us.")
    cost = StepCost(
        args.step_ms / 1e3, args.decode_row_us / 1e6, args.prefill_token_us / 1e6, args.context_token_ns / 1e9
    )
    return Machine(
        page_size=args.page_size,
        num_rows=args.rows,
        chunk=args.chunk,
        context_length=args.context_length,
        schedule_policy=args.schedule_policy,
        max_retractions=args.max_retractions,
        headroom=args.headroom,
        cost=cost,
    )


def _requests(args: argparse.Namespace, cost: StepCost) -> list[TraceRequest]:
    from .simulation.mixes import MIXES, build, rate_for
    from .simulation.trace import read_trace

    if args.trace is not None:
        return read_trace(args.trace)
    mix = MIXES[args.mix]
    rate = args.rate or rate_for(mix, args.load, cost, args.rows)
    return build(mix, args.requests, args.seed, rate)


def _load_name(args: argparse.Namespace) -> str:
    return str(args.trace) if args.trace is not None else f"mix {args.mix}, seed {args.seed}"


def _cases(args: argparse.Namespace, demand: int) -> list[Case]:
    from .simulation.measure import Case, parameters

    fractions = SWEPT if args.sweep else args.pool_fraction or (0.6,)
    pools = args.pool or [int(demand * fraction) for fraction in fractions]
    return [
        Case(policy, value, pool, pool / demand if demand else 0.0)
        for pool in pools
        for policy in args.policy
        for value in parameters(policy, args.schedule_conservativeness, args.watermark)
    ]
