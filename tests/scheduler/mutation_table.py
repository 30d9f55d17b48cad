"""The tables of docs/mutations.md: each seeded bug by itself, and the first thing that notices it.

python -m tests.scheduler.mutation_table
"""

from __future__ import annotations

import logging
import re
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from ebbtide.errors import InvariantViolation

from .accounting_bugs import ACCOUNTING
from .health import test_recovery
from .test_mutations import OTHERS, expectations, play_all

Bug = Callable[[pytest.MonkeyPatch], None]

PAGE = Path(__file__).resolve().parents[2] / "docs" / "mutations.md"
MESSAGE = 330  # characters of it that are shown

# The innermost of these functions in the traceback is who noticed.
WITNESSES = {
    "audit_plan": "books: the plan's audit, before the step is computed",
    "self_check_during_busy": "books: after the step",
    "on_idle": "books: the full check",
    "move": "ledger: at the move",
    "take": "free list: at the taking",
    "assert_same": "text: not the answer of an ample pool",
    "_take": "text: tokens after the end",
}
LOST = ("stuck", "no progress", "was expected to be over")
HOLDERS = re.compile(
    r"the host copy of request [\w.]+|request [\w.]+|a tree node of \d+ pages|the free list|quarantine\b|no owner"
    r"|nobody|running requests"
)
MAX_HOLDERS = 3


def caught(bug: Bug) -> tuple[str, str, str]:
    """(who noticed, which holders the message names, the message) when ``bug`` is in the scheduler."""
    with pytest.MonkeyPatch.context() as patch:
        bug(patch)
        try:
            play_all()
        except Exception as error:
            said = str(error).splitlines()[0] if str(error) else type(error).__name__
            return _witness(error), _named(error), said
    raise AssertionError(f"{bug.__name__} was not caught")


def _named(error: Exception) -> str:
    if not isinstance(error, InvariantViolation):
        return ""
    found = list(dict.fromkeys(HOLDERS.findall(str(error).partition("; last moves:")[0])))
    return ", ".join(found[:MAX_HOLDERS]) + (" …" if len(found) > MAX_HOLDERS else "")


def _witness(error: Exception) -> str:
    if any(word in str(error) for word in LOST):
        return "lost progress"
    if not isinstance(error, InvariantViolation | AssertionError):
        return f"a crash: {type(error).__name__}"
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if frame.name in WITNESSES:
            return WITNESSES[frame.name]
    return "another check"


def _in_quarantine(bug: Bug) -> str:
    if bug in test_recovery.CAUGHT_BEFORE_THE_FORWARD:
        return "every answer right"
    return "one end each, serving goes on" if bug in test_recovery.CAUGHT_SOMEHOW else ""


def table(bugs: Sequence[Bug]) -> str:
    """One row a bug, in the order of the tests."""
    expectations()  # without a bug
    lines = ["| bug | noticed by | holders named | message | in quarantine |", "|---|---|---|---|---|"]
    for bug in bugs:
        witness, named, said = caught(bug)
        short = said if len(said) <= MESSAGE else said[:MESSAGE] + " …"
        what = bug.__name__.replace("_", " ")
        lines.append(f"| {what} | {witness} | {named} | `{short}` | {_in_quarantine(bug)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    logging.disable()
    text = PAGE.read_text()
    for name, bugs in (("accounting", ACCOUNTING), ("others", OTHERS)):
        start, end = f"<!-- {name} -->\n", f"<!-- /{name} -->"
        text = text[: text.index(start) + len(start)] + table(bugs) + text[text.index(end) :]
    PAGE.write_text(text)
