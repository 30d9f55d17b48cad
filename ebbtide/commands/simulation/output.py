"""Prints the results of a simulation as a table, and converts them to data for JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from itertools import groupby
from typing import Any

from rich.console import Console
from rich.table import Table

from ebbtide import __version__

from .measure import Outcome, pareto_front
from .virtual import Machine

WIDTH = 140  # characters; a fixed width, because the table is also used in files and documents
FOOTNOTE = (
    "* on the Pareto front of its pool: no case is better in recomp. or p99 latency without being worse in the other. "
    "recomp.: recomputed / computed tokens. fair: Jain's index of slowdown. Times in virtual seconds."
)


@dataclass(frozen=True, slots=True)
class Report:
    """The results of a simulation.

    Attributes:
        load: name of the load.
        demand_tokens: peak KV use of the load in an unlimited pool, in tokens.
        outcomes: grouped by pool size.
    """

    load: str
    num_requests: int
    last_arrival_s: float
    demand_tokens: int
    machine: Machine
    outcomes: list[Outcome]

    def by_pool(self) -> list[list[Outcome]]:
        """Return the outcomes of each pool size, in the given order."""
        return [list(group) for _, group in groupby(self.outcomes, key=lambda outcome: outcome.case.pool_tokens)]


def as_dict(report: Report) -> dict[str, Any]:
    """Return parameters and results as data for JSON."""
    return {
        "ebbtide": __version__,
        "load": {"name": report.load, "requests": report.num_requests, "last_arrival_s": report.last_arrival_s},
        "machine": asdict(report.machine),
        "demand_tokens": report.demand_tokens,
        "cases": [{**asdict(outcome.case), **asdict(outcome.summary)} for outcome in report.outcomes],
    }


def print_report(report: Report) -> None:
    """Print the report to stdout."""
    console = Console(width=WIDTH)
    console.print(
        f"\n{report.load}: {report.num_requests} requests in {report.last_arrival_s:.0f} s, "
        f"demand {report.demand_tokens:,} tokens",
        markup=False,
        highlight=False,
    )
    console.print(_table(report))
    console.print(FOOTNOTE, markup=False, highlight=False)


def _table(report: Report) -> Table:
    table = Table("pool", box=None, padding=(0, 1, 0, 1))
    table.add_column("policy", no_wrap=True)
    columns = ("tok/s", "recomp. %", "TTFT p50", "p99", "latency p50", "p99", "fair", "retr.", "max", "aborts", "steps")
    for column in columns:
        table.add_column(column, justify="right")
    for outcomes in report.by_pool():
        front = pareto_front(outcomes)
        for outcome in outcomes:
            _add_row(table, outcome, first=outcome is outcomes[0], on_front=outcome in front)
        table.add_section()
    return table


def _add_row(table: Table, outcome: Outcome, *, first: bool, on_front: bool) -> None:
    case, summary = outcome.case, outcome.summary
    table.add_row(
        f"{case.pool_tokens:,} ({case.pool_fraction:.0%})" if first else "",
        case.label + (" *" if on_front else ""),
        f"{summary.goodput:,.0f}",
        f"{100 * summary.recomputed_share:.2f}",
        f"{summary.ttft_p50_s:.2f}",
        f"{summary.ttft_p99_s:.2f}",
        f"{summary.latency_p50_s:.2f}",
        f"{summary.latency_p99_s:.2f}",
        f"{summary.fairness:.3f}",
        str(summary.retractions),
        str(summary.max_retractions),
        str(summary.aborted),
        str(summary.steps),
    )
