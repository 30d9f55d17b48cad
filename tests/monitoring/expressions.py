"""The PromQL expressions of the dashboard and the alert rules, read from their files."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "monitoring"
DASHBOARD = FOLDER / "ebbtide-dashboard.json"
ALERTS = FOLDER / "ebbtide-alerts.yml"


def panels() -> list[dict[str, Any]]:
    """The dashboard's panels, without the rows."""
    return [panel for panel in json.loads(DASHBOARD.read_text())["panels"] if panel["type"] != "row"]


def rules() -> list[dict[str, Any]]:
    """The alert rules of all groups."""
    return [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]


def panel_queries(window: str) -> Iterator[tuple[str, str]]:
    """(panel: legend, expression), with every variable replaced. window: the range of rates, such as 1m."""
    for panel in panels():
        for target in panel["targets"]:
            expression = target["expr"].replace("$__rate_interval", window)
            for variable in ("$instance", "$model_name"):
                expression = expression.replace(variable, ".*")
            yield f"{panel['title']}: {target['legendFormat']}", expression


def alert_queries() -> Iterator[tuple[str, str]]:
    """(alert, expression)."""
    for rule in rules():
        yield rule["alert"], rule["expr"]
