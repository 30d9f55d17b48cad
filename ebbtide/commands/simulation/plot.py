"""Plots the results of a simulation to PNG files.

The module uses only matplotlib's object-oriented interface, which opens no window and keeps no global state.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from ...errors import StartupError
from .measure import Outcome
from .output import Report

MOST_POINTS = 2000  # maximum number of points per line; more would not be visible


def plot_usage(report: Report, path: Path) -> None:
    """Plot pool use and waiting requests over time, with one line per case and one column of panels per pool size."""
    pools = report.by_pool()
    figure = Figure(figsize=(5 * len(pools) + 2, 6), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(2, len(pools), squeeze=False, sharex=True, sharey="row")
    for column, outcomes in enumerate(pools):
        case = outcomes[0].case
        axes[0][column].set_title(f"pool {case.pool_tokens:,} tokens ({case.pool_fraction:.0%} of the demand)")
        axes[1][column].set_xlabel("virtual seconds")
        for outcome in outcomes:
            _usage_lines(axes[0][column], axes[1][column], outcome)
    axes[0][0].set_ylabel("pool in use, %")
    axes[1][0].set_ylabel("requests waiting")
    axes[0][0].legend(fontsize="small")
    figure.suptitle(report.load)
    _save(figure, path)


def plot_front(report: Report, path: Path) -> None:
    """Plot the p99 latency against the recomputed share of tokens.

    Each pool size has one panel. Each policy has one line, with one point per value of its admission parameter.
    """
    pools = report.by_pool()
    figure = Figure(figsize=(5 * len(pools) + 2, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, len(pools), squeeze=False)[0]
    for panel, outcomes in zip(panels, pools, strict=True):
        for policy in dict.fromkeys(outcome.case.policy for outcome in outcomes):
            _front_line(panel, policy, [outcome for outcome in outcomes if outcome.case.policy == policy])
        panel.set_title(f"pool {outcomes[0].case.pool_fraction:.0%} of the demand")
        panel.set_xlabel("recomputed share of tokens, %")
    panels[0].set_ylabel("p99 latency, s")
    panels[0].legend(fontsize="small")
    figure.suptitle(report.load)
    _save(figure, path)


def _usage_lines(use: Any, queue: Any, outcome: Outcome) -> None:
    usage = outcome.run.usage
    usage = usage[:: max(len(usage) // MOST_POINTS, 1)]
    times = [at for at, _, _ in usage]
    pool = outcome.case.pool_tokens
    use.plot(times, [100 * used / pool for _, used, _ in usage], label=outcome.case.label, linewidth=0.8)
    queue.plot(times, [waiting for _, _, waiting in usage], label=outcome.case.label, linewidth=0.8)


def _front_line(panel: Any, policy: str, outcomes: list[Outcome]) -> None:
    points = sorted(((o.case.parameter, o.summary) for o in outcomes), key=lambda point: point[0])
    shares = [100 * summary.recomputed_share for _, summary in points]
    latencies = [summary.latency_p99_s for _, summary in points]
    panel.plot(shares, latencies, marker="o", markersize=3, linewidth=0.8, label=policy)
    for (parameter, _), share, latency in zip(points, shares, latencies, strict=True):
        panel.annotate(f"{parameter:g}", (share, latency), fontsize=6, xytext=(3, 3), textcoords="offset points")


def _save(figure: Any, path: Path) -> None:
    try:
        figure.savefig(path, dpi=110, format="png")
    except OSError as error:
        raise StartupError(f"The plot could not be written to {path}: {error.strerror}.") from error
