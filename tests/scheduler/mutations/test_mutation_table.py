"""docs/mutations.md lists every seeded bug with the check that must notice it."""

from __future__ import annotations

from .mutation_table import PAGE, with_tables


def test_the_page_of_seeded_bugs_is_up_to_date() -> None:
    page = PAGE.read_text()
    assert page == with_tables(page), "run python -m tests.scheduler.mutations.mutation_table"
