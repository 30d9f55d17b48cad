"""Prints the Grafana dashboard: python docs/monitoring/make_dashboard.py > docs/monitoring/ebbtide-dashboard.json.

The content is in panels.py; this file contains Grafana's format.
"""

from __future__ import annotations

import json
from typing import Any

from panels import ROWS, Panel

SCHEMA_VERSION = 41  # Grafana 12; newer versions migrate it on load
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
WIDTH, HEIGHT = 8, 8  # of a panel; the page is 24 wide


def dashboard() -> dict[str, Any]:
    """The dashboard in Grafana's import format."""
    return {
        "uid": "ebbtide",
        "title": "ebbtide",
        "description": "An LLM serving daemon under memory pressure.",
        "tags": ["ebbtide", "llm"],
        "schemaVersion": SCHEMA_VERSION,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "timezone": "browser",
        "annotations": {"list": []},
        "links": [],
        "templating": {"list": _variables()},
        "panels": _panels(),
    }


def _variables() -> list[dict[str, Any]]:
    source: dict[str, Any] = {
        "name": "datasource",
        "label": "Data source",
        "type": "datasource",
        "query": "prometheus",
        "current": {},
    }
    instance = _choice("instance", "Instance", "label_values(ebbtide:max_total_num_tokens, instance)")
    model = _choice(
        "model_name", "Model", 'label_values(ebbtide:max_total_num_tokens{instance=~"$instance"}, model_name)'
    )
    return [source, instance, model]


def _choice(name: str, label: str, query: str) -> dict[str, Any]:
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": DATASOURCE,
        "definition": query,
        "query": {"query": query, "refId": f"variable-{name}"},
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": ["All"], "value": ["$__all"]},
        "options": [],
    }


def _panels() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    top = 0
    for title, panels in ROWS.items():
        position = {"h": 1, "w": 24, "x": 0, "y": top}
        row = {
            "id": len(found) + 1,
            "type": "row",
            "title": title,
            "collapsed": False,
            "gridPos": position,
            "panels": [],
        }
        found.append(row)
        for index, panel in enumerate(panels):
            place = {"h": HEIGHT, "w": WIDTH, "x": index % 3 * WIDTH, "y": top + 1 + index // 3 * HEIGHT}
            found.append({"id": len(found) + 1, "gridPos": place, **_panel(panel)})
        top += 1 + -(-len(panels) // 3) * HEIGHT
    return found


def _panel(panel: Panel) -> dict[str, Any]:
    is_heatmap = panel.kind == "heatmap"
    targets = [
        {
            "refId": chr(ord("A") + index),
            "datasource": DATASOURCE,
            "expr": expression,
            "legendFormat": legend,
            "range": True,
            "editorMode": "code",
            "format": "heatmap" if is_heatmap else "time_series",
        }
        for index, (legend, expression) in enumerate(panel.queries)
    ]
    return {
        "type": "heatmap" if is_heatmap else "timeseries",
        "title": panel.title,
        "description": panel.text,
        "datasource": DATASOURCE,
        "targets": targets,
        "fieldConfig": {"defaults": {} if is_heatmap else _line(panel), "overrides": []},
        "options": _heatmap_options(panel) if is_heatmap else _line_options(),
    }


def _line(panel: Panel) -> dict[str, Any]:
    stacked = panel.kind == "stacked"
    style = {
        "drawStyle": "line",
        "lineWidth": 1,
        "fillOpacity": 60 if stacked else 10,
        "showPoints": "never",
        "stacking": {"mode": "normal" if stacked else "none", "group": "A"},
    }
    return {"unit": panel.unit, "min": 0, "custom": style}


def _line_options() -> dict[str, Any]:
    return {
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []},
        "tooltip": {"mode": "multi", "sort": "desc"},
    }


def _heatmap_options(panel: Panel) -> dict[str, Any]:
    return {
        "calculate": False,
        "cellGap": 1,
        "color": {"mode": "scheme", "scheme": "Blues", "steps": 64, "reverse": False, "exponent": 0.5, "fill": "blue"},
        "yAxis": {"axisPlacement": "left", "unit": panel.unit},
        "rowsFrame": {"layout": "le"},
        "legend": {"show": True},
        "tooltip": {"mode": "single", "yHistogram": False},
        "filterValues": {"le": 1e-9},
        "showValue": "never",
    }


if __name__ == "__main__":
    print(json.dumps(dashboard(), indent=2, ensure_ascii=False))
