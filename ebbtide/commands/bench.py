"""``ebbtide bench``: measures the speed of any OpenAI-compatible server under load.

This file contains the command line only. Modules of bench_load/ that need a network library are imported only when the
command runs, so that the other commands start faster.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

from ..intervals import integer_in, number_in
from .arguments import add_server, add_value, fraction, seconds, seed, temperature
from .bench_load.workload import Lengths, Workload
from .results import write_json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of ``ebbtide bench``."""
    _add_target(parser.add_argument_group("target"))
    _add_load(parser.add_argument_group("load"))
    pace = parser.add_argument_group("pace").add_mutually_exclusive_group()
    add_value(pace, "--concurrency", integer_in("[1, 65536]"), "8", "N", "requests in flight at the same time")
    pace.add_argument(
        "--request-rate",
        type=number_in("(0, 1000000]"),
        metavar="R",
        help="mean arrivals per second (Poisson), with no limit on requests in flight; replaces --concurrency",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the result to this JSON file")


def _add_target(group: argparse._ArgumentGroup) -> None:
    add_server(group)
    group.add_argument("--endpoint", choices=("chat", "completions"), default="chat", help="endpoint (default: chat)")
    add_value(group, "--timeout", seconds, "600", "S", "timeout of one request in seconds")
    add_value(group, "--temperature", temperature, "0", "T", "sampling temperature")
    group.add_argument(
        "--ignore-eos",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="request exactly --output-len tokens (default: on); use --no-ignore-eos if the server rejects the field",
    )


def _add_load(group: argparse._ArgumentGroup) -> None:
    add_value(group, "--num-requests", integer_in("[1, 1000000]"), "64", "N", "number of measured requests")
    add_value(
        group, "--warmup", integer_in("[0, 1000000]"), "2", "N", "number of warm-up requests, which are not measured"
    )
    add_value(group, "--prompt-len", _lengths, "128", "N|LO:HI", "tokens per prompt")
    add_value(group, "--output-len", _lengths, "128", "N|LO:HI", "tokens per answer")
    add_value(group, "--shared-prefix", fraction, "0", "F", "fraction of each prompt that all prompts share")
    add_value(group, "--seed", seed, "0", "N", "seed of the prompts; repeating a seed may hit the prefix cache")


def _lengths(text: str) -> Lengths:
    try:
        return Lengths.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(
            f"{text[:50]!r} is neither a number of tokens up to 10000000 nor a range such as 64:256"
        ) from error


def run(args: argparse.Namespace) -> int:
    """Run the load and print the report. Returns 1 if no request completed, 130 if interrupted, else 0.

    Raises StartupError if the server cannot be reached or the result cannot be written.
    """
    from .bench_load.client import Target
    from .bench_load.measure import measure
    from .bench_load.output import as_dict, print_report

    target = Target(
        base_url=args.base_url.rstrip("/"),
        model=args.model,
        endpoint=args.endpoint,
        api_key=args.api_key,
        ignore_eos=args.ignore_eos,
        temperature=args.temperature,
        timeout_s=args.timeout,
    )
    workload = Workload(
        num_requests=args.num_requests,
        prompt_len=args.prompt_len,
        output_len=args.output_len,
        shared_prefix=args.shared_prefix,
        seed=args.seed,
        request_rate=args.request_rate,
    )
    try:
        measurement = asyncio.run(measure(target, workload, concurrency=args.concurrency, num_warmup=args.warmup))
    except KeyboardInterrupt:
        print("Interrupted; there is no report.", file=sys.stderr)
        return 130
    print_report(measurement)
    if args.json is not None:
        write_json(as_dict(measurement), args.json)
    return 0 if measurement.report.totals["completed"] else 1
