"""``ebbtide simulate``: how large must the pool be, and which policy? The scheduler on paper time.

Only the command line: the flags, and what is done with the result. The scheduler is imported when it runs.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import StartupError

if TYPE_CHECKING:
    from .simulation.cost import CostModel
    from .simulation.measure import Case
    from .simulation.output import Report
    from .simulation.trace import TraceRequest
    from .simulation.virtual import Machine

MIX_NAMES = ("chat", "long-prompt", "long-output", "agents", "bursty", "known-output")
POLICY_NAMES = ("length", "cost", "priority", "vllm", "sglang")
COMPARED = ("length", "cost", "vllm", "sglang")
SWEPT = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of ``ebbtide simulate``."""
    _add_load(parser.add_argument_group("the load"))
    _add_cases(parser.add_argument_group("what is compared: every pool with every policy and parameter"))
    _add_machine(parser.add_argument_group("the machine"))
    _add_cost(parser.add_argument_group("what a step costs; measure your own"))
    group = parser.add_argument_group("the result")
    group.add_argument("--json", type=Path, metavar="FILE", help="also write everything here")
    group.add_argument("--plot", type=Path, metavar="FILE.png", help="pool use and queue over time")
    group.add_argument("--plot-front", type=Path, metavar="FILE.png", help="tax against p99 latency, a line per policy")


def _add_load(group: argparse._ArgumentGroup) -> None:
    source = group.add_mutually_exclusive_group()
    source.add_argument("--trace", type=Path, metavar="FILE.jsonl", help="requests, one a line; see docs/simulate.md")
    source.add_argument("--mix", choices=MIX_NAMES, default="chat", help="or made-up ones (chat)")
    group.add_argument("--requests", type=_positive_int, default=400, metavar="N", help="how many of a mix (400)")
    pace = group.add_mutually_exclusive_group()
    pace.add_argument("--rate", type=_positive, metavar="R", help="mean arrivals of a mix per second")
    pace.add_argument(
        "--load", type=_positive, default=0.9, metavar="X", help="or the share of the machine's speed it asks for (0.9)"
    )
    group.add_argument("--seed", type=int, default=0, metavar="N", help="the same seed gives the same numbers (0)")


def _add_cases(group: argparse._ArgumentGroup) -> None:
    pool = group.add_mutually_exclusive_group()
    pool.add_argument("--pool", type=_positive_int, nargs="+", metavar="TOKENS", help="sizes of the KV pool")
    pool.add_argument(
        "--pool-fraction",
        type=_positive,
        nargs="+",
        metavar="F",
        help="or as shares of the demand, the most KV that the load uses when nothing limits it (0.6)",
    )
    pool.add_argument("--sweep", action="store_true", help="or every tenth from 30 to 100 %% of the demand")
    group.add_argument("--policy", choices=POLICY_NAMES, nargs="+", default=COMPARED, help="(all but priority)")
    group.add_argument(
        "--schedule-conservativeness",
        type=_positive,
        nargs="+",
        default=[],
        metavar="X",
        help="admission parameter of all but vllm (1)",
    )
    group.add_argument(
        "--watermark", type=_share, nargs="+", default=[], metavar="F", help="admission parameter of vllm (0)"
    )


def _add_machine(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--page-size", type=_positive_int, default=16, metavar="TOKENS", help="tokens per page (16)")
    group.add_argument("--rows", type=_positive_int, default=64, metavar="N", help="most running requests (64)")
    group.add_argument("--chunk", type=_positive_int, default=2048, metavar="TOKENS", help="prefill per step (2048)")
    group.add_argument("--context-length", type=_positive_int, default=32768, metavar="TOKENS", help="(32768)")
    group.add_argument("--schedule-policy", choices=("fcfs", "lpm", "priority"), default="fcfs", help="(fcfs)")
    group.add_argument(
        "--max-retractions", type=int, default=3, metavar="N", help="bound, not for vllm and sglang; -1 is none (3)"
    )
    group.add_argument(
        "--headroom",
        type=int,
        metavar="PAGES",
        help="pages per running row that a retraction frees beyond the next step, not for vllm and sglang (as serve)",
    )


def _add_cost(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--step-ms", type=_cost, default=10.0, metavar="MS", help="every step (10)")
    group.add_argument("--decode-row-us", type=_cost, default=50.0, metavar="US", help="a row that decodes (50)")
    group.add_argument("--prefill-token-us", type=_cost, default=50.0, metavar="US", help="a prefilled token (50)")
    group.add_argument("--context-token-ns", type=_cost, default=60.0, metavar="NS", help="a token of context (60)")


def _positive_int(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not 1 or more")
    return value


def _positive(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not a number above 0")
    return value


def _cost(text: str) -> float:
    value = float(text)
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not a number of at least 0")
    return value


def _share(text: str) -> float:
    value = float(text)
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not in [0, 1)")
    return value


def run(args: argparse.Namespace) -> int:
    """Simulate every case and print the table. Raises StartupError with one sentence for what cannot be simulated."""
    from .simulation.measure import demand_tokens, simulate
    from .simulation.output import Report, print_report, write_json

    machine = _machine(args)
    requests = _requests(args, machine.cost)
    with _quiet_scheduler():
        demand = demand_tokens(requests, machine)
        outcomes = [simulate(requests, machine, case) for case in _cases(args, demand)]
    report = Report(_load_name(args), len(requests), requests[-1].arrival_s, demand, machine, outcomes)
    print_report(report)
    if args.json is not None:
        write_json(report, args.json)
    _plot(args, report)
    return 0


@contextmanager
def _quiet_scheduler() -> Iterator[None]:
    """A retraction is worth a warning only where it is real."""
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
    from .simulation.cost import CostModel
    from .simulation.virtual import Machine

    if not (args.step_ms or (args.decode_row_us and args.prefill_token_us)):
        raise StartupError("A step must take time: give --step-ms, or both --decode-row-us and --prefill-token-us.")
    cost = CostModel(
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


def _requests(args: argparse.Namespace, cost: CostModel) -> list[TraceRequest]:
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
