"""``ebbtide bench``: measures the speed of any OpenAI-compatible server under load.

This file holds the command line only. Modules of bench_load/ that need a network library are imported when the command
runs, so that other commands start faster.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

from .argument_types import fraction, positive_float, positive_int
from .bench_load.workload import Lengths, Workload


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of ``ebbtide bench``."""
    _add_target(parser.add_argument_group("target"))
    _add_load(parser.add_argument_group("load"))
    pace = parser.add_argument_group("pace").add_mutually_exclusive_group()
    pace.add_argument(
        "--concurrency",
        type=positive_int,
        default=8,
        metavar="N",
        help="requests in flight at the same time (default: 8)",
    )
    pace.add_argument(
        "--request-rate",
        type=positive_float,
        metavar="R",
        help="mean arrivals per second (Poisson), with no limit on requests in flight; replaces --concurrency",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the result to this JSON file")


def _add_target(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--base-url", default="http://127.0.0.1:8000/v1", metavar="URL", help="base URL of the API, including /v1"
    )
    group.add_argument(
        "--model", default="", metavar="NAME", help="model name (default: the first that the server lists)"
    )
    group.add_argument("--api-key", metavar="KEY", help="API key, sent as a bearer token")
    group.add_argument("--endpoint", choices=("chat", "completions"), default="chat", help="endpoint (default: chat)")
    group.add_argument(
        "--timeout",
        type=positive_float,
        default=600.0,
        metavar="S",
        help="timeout of one request in seconds (default: 600)",
    )
    group.add_argument("--temperature", type=float, default=0.0, metavar="T", help="sampling temperature (default: 0)")
    group.add_argument(
        "--ignore-eos",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="request exactly --output-len tokens (on); if the server rejects unknown fields: --no-ignore-eos",
    )


def _add_load(group: argparse._ArgumentGroup) -> None:
    some = Lengths(128, 128)
    group.add_argument(
        "--num-requests", type=positive_int, default=64, metavar="N", help="number of measured requests (default: 64)"
    )
    group.add_argument(
        "--warmup",
        type=int,
        default=2,
        metavar="N",
        help="number of earlier requests that are not measured (default: 2)",
    )
    group.add_argument(
        "--prompt-len", type=_lengths, default=some, metavar="N|LO:HI", help="tokens per prompt (default: 128)"
    )
    group.add_argument(
        "--output-len", type=_lengths, default=some, metavar="N|LO:HI", help="tokens per answer (default: 128)"
    )
    group.add_argument(
        "--shared-prefix",
        type=fraction,
        default=0.0,
        metavar="F",
        help="fraction of each prompt that all prompts share (default: 0)",
    )
    group.add_argument(
        "--seed",
        type=int,
        default=0,
        metavar="N",
        help="seed (default: 0); a repeated seed may hit the prefix cache",
    )


def _lengths(text: str) -> Lengths:
    try:
        return Lengths.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text} is neither a number of tokens nor a range such as 64:256") from error


def run(args: argparse.Namespace) -> int:
    """Run the load and print the report. Returns 1 if no request was answered, else 0.

    Raises StartupError with one sentence if the server cannot be reached or the result cannot be written.
    """
    from .bench_load.client import Target
    from .bench_load.measure import measure
    from .bench_load.output import print_report, write_json

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
        write_json(measurement, args.json)
    return 0 if measurement.report.totals["completed"] else 1
