"""The tables of docs/mutations.md: each seeded bug and the check that must notice it first.

``python -m tests.scheduler.mutations.mutation_table`` writes them into the page.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from .. import test_second_pool as _hand_made_in_the_second_pool  # noqa: F401 (fills HAND_MADE)
from ..health.test_recovery import CAUGHT_BEFORE_THE_FORWARD, CAUGHT_SOMEHOW
from ..memory import test_state_pool as _hand_made_in_the_state_pool  # noqa: F401 (fills HAND_MADE)
from ..memory import test_window_pool as _hand_made_in_the_window_pool  # noqa: F401 (fills HAND_MADE)
from ..sessions import test_session_windows as _hand_made_in_sessions  # noqa: F401 (fills HAND_MADE)
from .accounting_bugs import ACCOUNTING
from .test_mutations import OTHERS
from .test_second_pool_mutations import BY_ACCOUNTING, SECOND_POOL_BUGS
from .test_session_mutations import SESSION_BUGS
from .test_state_mutations import STATE_BUGS
from .test_window_mutations import WINDOW_BUGS
from .test_window_session_mutations import HOST_WINDOW_BUGS, SESSION_WINDOW_BUGS
from .witnesses import HAND_MADE, Bug, Witness

PAGE = Path(__file__).resolve().parents[3] / "docs" / "mutations.md"
TABLES = {
    "accounting": ACCOUNTING,
    "others": OTHERS,
    "second-pool": SECOND_POOL_BUGS,
    "window-pool": WINDOW_BUGS,
    "state-pool": STATE_BUGS,
    "sessions": SESSION_BUGS,
    "window-slots": SESSION_WINDOW_BUGS | HOST_WINDOW_BUGS,
}
IN_QUARANTINE: dict[Bug, str] = {
    **dict.fromkeys([*CAUGHT_BEFORE_THE_FORWARD, *BY_ACCOUNTING], "no output changes"),
    **dict.fromkeys(CAUGHT_SOMEHOW, "every request ends once"),
}


def table(bugs: Mapping[Bug, Witness]) -> str:
    lines = ["| bug | detected first by | in quarantine mode |", "|---|---|---|"]
    for bug, witness in bugs.items():
        lines.append(f"| {bug.__name__.replace('_', ' ')} | {witness.value} | {IN_QUARANTINE.get(bug, '')} |")
    return "\n".join(lines) + "\n"


def faults_table() -> str:
    lines = ["| test | detected first by |", "|---|---|"]
    for name, witness in sorted(HAND_MADE.items()):
        lines.append(f"| {name.removeprefix('test_').replace('_', ' ')} | {witness.value} |")
    return "\n".join(lines) + "\n"


def with_tables(page: str) -> str:
    """The page with up-to-date tables."""
    for name, text in {"faults": faults_table(), **{name: table(bugs) for name, bugs in TABLES.items()}}.items():
        start, end = f"<!-- {name} -->\n", f"<!-- /{name} -->"
        page = page[: page.index(start) + len(start)] + text + page[page.index(end) :]
    return page


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text()))
