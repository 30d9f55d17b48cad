"""Statistics and output that the commands share."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..errors import StartupError


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Return a percentile of ascending values, with linear interpolation; 0 if there are no values."""
    if not ordered:
        return 0.0
    place = (len(ordered) - 1) * percent / 100
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def write_json(result: dict[str, Any], path: Path) -> None:
    """Write a result to a JSON file. Raises StartupError if the file cannot be written."""
    try:
        path.write_text(json.dumps(result, indent=2) + "\n")
    except OSError as error:
        raise StartupError(f"The result could not be written to {path}: {error.strerror}.") from error
