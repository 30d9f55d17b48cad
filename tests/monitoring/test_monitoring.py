"""Dashboard and alerts query only exported series, and the dashboard has Grafana's format."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import promql_parser
import pytest

from ebbtide.server.metrics.help_texts import GAUGE_TEXTS, HISTOGRAM_TEXTS, LABELS, PREFIX, TOTAL_TEXTS

from .expressions import DASHBOARD, FOLDER, alert_queries, panel_queries, panels, rules

QUERIES = [*panel_queries("5m"), *alert_queries()]
TARGET_LABELS = {"instance", "job"}  # added by Prometheus to every target
OF_PROMETHEUS = {"up": set[str]()}


def exported() -> dict[str, set[str]]:
    """Every series name as Prometheus stores it, with its labels."""
    found: dict[str, set[str]] = {}
    for name in (*GAUGE_TEXTS, *TOTAL_TEXTS):
        found[PREFIX + name] = {"model_name", *LABELS.get(name, ())}
    for name in HISTOGRAM_TEXTS:
        labels = {"model_name", *LABELS.get(name, ())}
        found |= {PREFIX + name + end: labels for end in ("_sum", "_count")}
        found[f"{PREFIX}{name}_bucket"] = labels | {"le"}
    return found


SERIES = {name: labels | TARGET_LABELS for name, labels in {**exported(), **OF_PROMETHEUS}.items()}


def nodes(node: Any) -> Iterator[Any]:
    """An expression and all its parts."""
    yield node
    for name in ("expr", "lhs", "rhs", "vector_selector", "param"):
        part = getattr(node, name, None)
        if part is not None and not isinstance(part, str):
            yield from nodes(part)
    for argument in getattr(node, "args", ()):
        yield from nodes(argument)


def selectors(expression: Any) -> list[Any]:
    """The series selectors of the expression."""
    return [node for node in nodes(expression) if isinstance(node, promql_parser.VectorSelector)]


def problems(query: str) -> list[str]:
    """Series and labels in the query that are not exported."""
    expression = promql_parser.parse(query)
    found = []
    for selector in selectors(expression):
        if selector.name not in SERIES:
            found.append(f"there is no {selector.name}")
            continue
        named = {matcher.name for matcher in selector.matchers.matchers}
        found += [f"{selector.name} has no label {label}" for label in named - SERIES[selector.name]]
    for node in nodes(expression):
        if isinstance(node, promql_parser.AggregateExpr) and node.modifier is not None:
            names = [selector.name for selector in selectors(node)]
            there = set.intersection(*(SERIES.get(name, set()) for name in names))
            found += [f"{names} have no label {label}" for label in set(node.modifier.labels) - there]
    return found


@pytest.mark.parametrize(("where", "query"), QUERIES, ids=[where for where, _ in QUERIES])
def test_a_query_reads_only_existing_series_and_labels(where: str, query: str) -> None:
    assert selectors(promql_parser.parse(query)), where
    assert problems(query) == []


@pytest.mark.parametrize(
    ("query", "problem"),
    [
        ("rate(ebbtide:gone_total[5m])", "there is no ebbtide:gone_total"),
        ("1 - sum(rate(ebbtide:num_requests_total[5m])) / sum(ebbtide:gone)", "there is no ebbtide:gone"),
        ("histogram_quantile(0.9, rate(ebbtide:queue_time_seconds[5m]))", "there is no ebbtide:queue_time_seconds"),
        ('ebbtide:token_usage{pool="full"}', "ebbtide:token_usage has no label pool"),
        ("sum by (reason) (ebbtide:token_usage)", "['ebbtide:token_usage'] have no label reason"),
        (
            "sum without (pool) (rate(ebbtide:prompt_tokens_total[1m]))",
            "['ebbtide:prompt_tokens_total'] have no label pool",
        ),
    ],
)
def test_the_check_finds(query: str, problem: str) -> None:
    assert problems(query) == [problem]


def test_rates_are_used_for_counters_only() -> None:
    counters = {name for name in SERIES if re.search(r"_(total|count|sum|bucket)$", name)}
    for where, query in QUERIES:
        expression = promql_parser.parse(query)
        ranged = {
            node.vector_selector.name for node in nodes(expression) if isinstance(node, promql_parser.MatrixSelector)
        }
        assert ranged <= counters, where


def test_every_panel_filters_by_instance_and_model() -> None:
    for panel in panels():
        for target in panel["targets"]:
            assert target["expr"].count("{instance=~") == target["expr"].count("ebbtide:"), panel["title"]


def test_pressure_comes_first() -> None:
    first = [panel["title"] for panel in panels()[:6]]
    assert first == [
        *("Retractions", "Retracted now", "Time until resumed", "New-token ratio"),
        *("KV pool by owner", "Aborted requests by reason"),
    ]


def test_the_dashboard_is_generated_from_panels() -> None:
    made = subprocess.run([sys.executable, FOLDER / "make_dashboard.py"], capture_output=True, text=True, check=True)
    assert DASHBOARD.read_text() == made.stdout


def test_panels_have_ids_places_and_words_of_their_own() -> None:
    dashboard = json.loads(DASHBOARD.read_text())
    everything = dashboard["panels"]
    assert len({panel["id"] for panel in everything}) == len(everything)
    cells = [
        (x, y)
        for place in (panel["gridPos"] for panel in everything)
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) < 24
    titles = [panel["title"] for panel in panels()]
    assert len(set(titles)) == len(titles)
    assert all(panel["description"].endswith(".") for panel in panels())
    assert {variable["name"] for variable in dashboard["templating"]["list"]} == {
        "datasource",
        "instance",
        "model_name",
    }


def test_alerts_state_the_value_and_the_instance() -> None:
    names = [rule["alert"] for rule in rules()]
    assert len(set(names)) == len(names)
    for rule in rules():
        assert rule["labels"]["severity"] in ("warning", "critical"), rule["alert"]
        assert "{{ $labels.instance }}" in rule["annotations"]["summary"], rule["alert"]


def test_alerts_cover_what_they_should() -> None:
    asked = " ".join(query for _, query in alert_queries())
    for name in (
        *("num_retracted_requests_total", "time_to_first_token_seconds_bucket", "inter_token_latency_seconds_bucket"),
        *("e2e_request_latency_seconds_bucket", "num_queue_reqs > 50", "kv_invariant_violations_total"),
        *("watchdog_last_progress_seconds", "max_total_num_tokens == 0", "http_responses_total", "token_usage > 0.95"),
    ):
        assert name in asked
