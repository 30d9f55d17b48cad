"""Formats tables, sizes and durations as text."""

from __future__ import annotations

from collections.abc import Sequence

UNITS = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))


def print_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table whose columns are as wide as their longest cell."""
    lines = [head, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    for line in lines:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def size_text(num_bytes: float) -> str:
    """Return a size with a decimal unit, such as "1.2 GB"."""
    for unit in ("B", "kB", "MB"):
        if num_bytes < 999.5:
            return f"{num_bytes:.0f} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:.1f} GB"


def duration_text(seconds: float) -> str:
    """Return a duration in its largest unit, rounded down, such as "3 h"."""
    for unit, length in UNITS:
        if seconds >= length:
            return f"{int(seconds // length)} {unit}"
    return "0 s"
