"""Record the answers of a source tree's ``ebbtide serve``, and compare them with an earlier recording.

    python tools/record_answers.py --tree PATH --output FILE [--real] [--only NAME] [--compare OTHER.json]
    python tools/record_answers.py --recorded FILE --compare OTHER.json [--ignore-messages]

Exit code 1 if the answers differ, or if a route of /openapi.json has no recorded request.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from pathlib import Path
from typing import Any

from answer_forms import differences, without_messages
from answering_daemon import AnsweringDaemon
from recorded_cases import Setup
from recorded_requests import real_setup, setups

SHOWN = 8  # differences of one answer


def main() -> int:
    """Run the command line. Returns the exit code."""
    arguments = _arguments()
    if arguments.recorded:
        answers = json.loads(arguments.recorded.read_text())
    else:
        answers = record(arguments.tree.resolve(), [real_setup()] if arguments.real else setups(), arguments.only)
    if arguments.output:
        arguments.output.write_text(json.dumps(answers, indent=1, ensure_ascii=False) + "\n")
    missing = [] if arguments.recorded or arguments.real or arguments.only else unasked(answers)
    for route in missing:
        print(f"no recorded request: {route}")
    found = 0
    if arguments.compare:
        earlier = json.loads(arguments.compare.read_text())
        if arguments.only:
            earlier = {name: earlier[name] for name in answers}
        found = report(earlier, answers, ignores_messages=arguments.ignore_messages)
    return 1 if missing or found else 0


def record(tree: Path, wanted: list[Setup], only: str | None) -> dict[str, Any]:
    """Return the answers by daemon and request. The next daemon starts while requests are sent to the current one."""
    chosen = [setup for setup in wanted if only is None or setup.name == only]
    answers: dict[str, Any] = {}
    daemons: list[AnsweringDaemon] = []
    try:
        for at, setup in enumerate(chosen):
            daemons += [AnsweringDaemon(tree, later) for later in chosen[len(daemons) : at + 2]]
            began_s = time.monotonic()
            daemons[at].wait_until_ready()
            answers[setup.name] = daemons[at].answers()
            daemons[at].close()
            print(f"{setup.name}: {len(setup.asks)} requests, {time.monotonic() - began_s:.1f} s", file=sys.stderr)
    finally:
        for daemon in daemons[len(answers) :]:
            daemon.close()
    return answers


def unasked(answers: dict[str, Any]) -> list[str]:
    """Return the routes in the API's description to which no request was sent."""
    described = answers["main"]["GET /openapi.json"]["json"]["paths"]
    asked = {(ask.method, ask.path.partition("?")[0]) for setup in setups() for ask in setup.asks}
    missing = []
    for path, methods in described.items():
        pattern = re.compile(re.sub(r"\\{(\w+)\\}", "[^/]+", re.escape(path)))
        hits = {method for method, other in asked if pattern.fullmatch(other)}
        missing += [f"{method.upper()} {path}" for method in methods if method.upper() not in hits]
    return missing


def report(earlier: dict[str, Any], later: dict[str, Any], *, ignores_messages: bool) -> int:
    """Print each difference. Returns the number of answers that differ."""
    found = 0
    for daemon in {**earlier, **later}:
        one, two = earlier.get(daemon, {}), later.get(daemon, {})
        for name in {**one, **two}:
            pair = [answers.get(name, "not recorded") for answers in (one, two)]
            if ignores_messages:
                pair = [without_messages(answer) for answer in pair]
            lines = list(differences(*pair))
            found += bool(lines)
            for line in lines[:SHOWN]:
                print(f"[{daemon}] {name}{line}")
    total = sum(len(answers) for answers in later.values())
    print(f"{found} of {total} answers differ", file=sys.stderr)
    return found


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Record the answers of a source tree's daemon.", allow_abbrev=False)
    parser.add_argument("--tree", type=Path, default=Path(__file__).parent.parent, help="source tree to record")
    parser.add_argument("--output", type=Path, help="file to write the recording to")
    parser.add_argument("--recorded", type=Path, help="compare this recording instead of making one")
    parser.add_argument("--compare", type=Path, help="earlier recording")
    parser.add_argument(
        "--ignore-messages", action="store_true", help="ignore the human text of errors and descriptions"
    )
    parser.add_argument("--real", action="store_true", help="record smollm2 in float32 instead of the simulated model")
    parser.add_argument("--only", metavar="NAME", help="record one daemon of the table")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
