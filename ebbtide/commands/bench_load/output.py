"""Prints a measurement as tables and writes it as JSON."""

from __future__ import annotations

import os
import platform
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table

from ebbtide import __version__

from .measure import Measurement
from .report import PERCENTILES, Report


def as_dict(measurement: Measurement) -> dict[str, Any]:
    """Return parameters, machine and results as data for JSON, without the API key."""
    target = asdict(measurement.target)
    del target["api_key"]
    workload = measurement.workload
    lengths = {"prompt_len": str(workload.prompt_len), "output_len": str(workload.output_len)}
    calibration = measurement.calibration
    return {
        "ebbtide": __version__,
        "machine": {"system": platform.platform(), "python": platform.python_version(), "cpus": os.cpu_count()},
        "target": target,
        "load": {**asdict(workload), **lengths, "concurrency": measurement.concurrency},
        "calibration": asdict(calibration) if calibration is not None else None,
        "result": asdict(measurement.report),
    }


def print_report(measurement: Measurement) -> None:
    """Print the report to stdout."""
    console = Console()
    target, report = measurement.target, measurement.report
    console.print(f"\n{target.model} at {target.url}, {_pace(measurement)}", markup=False, highlight=False)
    if measurement.calibration is None:
        console.print("This server does not report prompt tokens: prompt lengths are in words.")
    console.print(_totals_table(report.totals))
    console.print(_latency_table(report))
    if report.errors:
        console.print(_errors_table(report.errors))


def _pace(measurement: Measurement) -> str:
    if measurement.concurrency is None:
        return f"{measurement.workload.request_rate:g} requests/s"
    return f"{measurement.concurrency} at a time"


def _totals_table(totals: dict[str, Any]) -> Table:
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    reasons = ", ".join(f"{reason} {count}" for reason, count in totals["finish_reasons"].items())
    rows = {
        "output tokens/s": f"{totals['output_tokens_per_s']:,.1f}",
        "requests/s": f"{totals['requests_per_s']:.2f}",
        "requests": f"{totals['completed']} completed, {totals['failed']} failed in {totals['duration_s']:.2f} s",
        "output tokens": _output_tokens(totals),
        "prompt tokens": _prompt_tokens(totals),
        "ended by": reasons or "-",
        "this client": f"{totals['client_cpu_share']:.1%} of one core",
    }
    for name, value in rows.items():
        table.add_row(name, value)
    return table


def _output_tokens(totals: dict[str, Any]) -> str:
    counted = totals["counted_by_chunks"]
    doubt = f" (one per chunk in {counted} answers that came without usage)" if counted else ""
    return f"{totals['output_tokens']:,}{doubt}"


def _prompt_tokens(totals: dict[str, Any]) -> str:
    if totals["prompt_tokens"] is None:
        return "not reported"
    cached = "" if totals["cached_tokens"] is None else f" ({totals['cached_tokens']:,} cached)"
    return f"{totals['prompt_tokens']:,}{cached}"


def _latency_table(report: Report) -> Table:
    columns = (*(f"p{percent}" for percent in PERCENTILES), "mean")
    table = Table("milliseconds", *columns)
    rows = {
        "time to first token": report.ttft_ms,
        "inter-token latency": report.itl_ms,
        "time per output token": report.tpot_ms,
        "end to end": report.e2e_ms,
    }
    for name, values in rows.items():
        table.add_row(name, *("-" if values is None else f"{values[column]:,.1f}" for column in columns))
    return table


def _errors_table(errors: list[dict[str, Any]]) -> Table:
    table = Table("error", "count", "for example")
    for error in errors:
        # Text from a server: its brackets must not be parsed as markup.
        table.add_row(*(value.replace("[", "\\[") for value in (error["kind"], str(error["count"]), error["example"])))
    return table
