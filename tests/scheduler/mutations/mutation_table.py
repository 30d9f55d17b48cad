"""The tables of docs/mutations.md: each seeded bug and the check that must notice it first.

``python -m tests.scheduler.mutations.mutation_table`` writes them into the page.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ..health.test_recovery import CAUGHT_BEFORE_THE_FORWARD, CAUGHT_SOMEHOW
from .accounting_bugs import ACCOUNTING
from .test_mutations import OTHERS
from .test_session_mutations import SESSION_BUGS
from .witnesses import Bug, Witness

PAGE = Path(__file__).resolve().parents[3] / "docs" / "mutations.md"
TABLES = {"accounting": ACCOUNTING, "others": OTHERS, "sessions": SESSION_BUGS}
IN_QUARANTINE: dict[Bug, str] = {
    **dict.fromkeys(CAUGHT_BEFORE_THE_FORWARD, "no output changes"),
    **dict.fromkeys(CAUGHT_SOMEHOW, "every request ends once"),
}


def table(bugs: Mapping[Bug, Witness]) -> str:
    lines = ["| bug | noticed by | in quarantine mode |", "|---|---|---|"]
    for bug, witness in bugs.items():
        lines.append(f"| {bug.__name__.replace('_', ' ')} | {witness.value} | {IN_QUARANTINE.get(bug, '')} |")
    return "\n".join(lines) + "\n"


def with_tables(page: str) -> str:
    """The page with its tables as they must be."""
    for name, bugs in TABLES.items():
        start, end = f"<!-- {name} -->\n", f"<!-- /{name} -->"
        page = page[: page.index(start) + len(start)] + table(bugs) + page[page.index(end) :]
    return page


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text()))
