"""``ebbtide bench``: load any OpenAI-compatible server and say how fast it answers.

Only the command line: the flags, and what is done with the result. The parts in bench_load/ that need a network
library are imported when it runs, so that other commands do not wait for them.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

from .bench_load.workload import Lengths, Workload


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of ``ebbtide bench``."""
    _add_target(parser.add_argument_group("whom to ask"))
    _add_load(parser.add_argument_group("what to send"))
    pace = parser.add_argument_group("how fast").add_mutually_exclusive_group()
    pace.add_argument(
        "--concurrency", type=_positive_int, default=8, metavar="N", help="requests in flight at once (8)"
    )
    pace.add_argument(
        "--request-rate",
        type=_positive_float,
        metavar="R",
        help="mean arrivals per second (Poisson) instead, however many are in flight",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the result here")


def _add_target(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--base-url", default="http://127.0.0.1:8000/v1", metavar="URL", help="the API, with its /v1")
    group.add_argument("--model", default="", metavar="NAME", help="model to ask for (the first that the server lists)")
    group.add_argument("--api-key", metavar="KEY", help="sent as a bearer token")
    group.add_argument("--endpoint", choices=("chat", "completions"), default="chat", help="which endpoint (chat)")
    group.add_argument("--timeout", type=_positive_float, default=600.0, metavar="S", help="seconds per request (600)")
    group.add_argument("--temperature", type=float, default=0.0, metavar="T", help="sampling temperature (0)")
    group.add_argument(
        "--ignore-eos",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="ask for exactly --output-len tokens (on); servers that refuse unknown fields need --no-ignore-eos",
    )


def _add_load(group: argparse._ArgumentGroup) -> None:
    some = Lengths(128, 128)
    group.add_argument("--num-requests", type=_positive_int, default=64, metavar="N", help="requests to measure (64)")
    group.add_argument("--warmup", type=int, default=2, metavar="N", help="requests before that, not measured (2)")
    group.add_argument("--prompt-len", type=_lengths, default=some, metavar="N|LO:HI", help="tokens per prompt (128)")
    group.add_argument("--output-len", type=_lengths, default=some, metavar="N|LO:HI", help="tokens per answer (128)")
    group.add_argument(
        "--shared-prefix", type=_fraction, default=0.0, metavar="F", help="fraction of each prompt that all share (0)"
    )
    group.add_argument(
        "--seed", type=int, default=0, metavar="N", help="the same seed sends the same prompts, warm cache or not (0)"
    )


def _positive_int(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not 1 or more")
    return value


def _positive_float(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not a number above 0")
    return value


def _fraction(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{text} is not between 0 and 1")
    return value


def _lengths(text: str) -> Lengths:
    try:
        return Lengths.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text} is neither a number of tokens nor a range such as 64:256") from error


def run(args: argparse.Namespace) -> int:
    """Carry out the load and print the report. 0 unless not one request was answered.

    Raises StartupError with one sentence when the server cannot be asked at all, or the result not be written.
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
        print("Interrupted: nothing to report.", file=sys.stderr)
        return 130
    print_report(measurement)
    if args.json is not None:
        write_json(measurement, args.json)
    return 0 if measurement.report.totals["completed"] else 1
