"""Checks docs/troubleshooting.md: flags and their defaults, metrics, codes and log lines exist."""

from __future__ import annotations

import ast
import re
from dataclasses import Field, fields
from pathlib import Path
from typing import Any

import pytest

from ebbtide.config import LogConfig, RunnerConfig, SchedulerConfig, ServerConfig, WatchdogConfig
from ebbtide.runtime.child import WATCHDOG_EXIT_CODE
from ebbtide.server.metrics.help_texts import GAUGE_TEXTS, HISTOGRAM_TEXTS, TOTAL_TEXTS

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "troubleshooting.md").read_text()
FOLDERS = ("ebbtide", "server", "scheduler", "model_runner", "tokenizer_mgr", "detokenizer")
METRICS = {**GAUGE_TEXTS, **TOTAL_TEXTS, **HISTOGRAM_TEXTS}
FLAGS: dict[str, Field[Any]] = {
    field.metadata["flag"] or "--" + field.name.replace("_", "-"): field
    for section in (ServerConfig, RunnerConfig, SchedulerConfig, WatchdogConfig, LogConfig)
    for field in fields(section)
}


def in_code(text: str = PAGE) -> list[str]:
    """Texts in backticks."""
    return re.findall(r"`([^`]+)`", text)


def table(head: str) -> list[list[str]]:
    """The cells of the table whose first column has the header ``head``."""
    lines = PAGE.split(f"| {head} |")[1].split("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def texts() -> str:
    """Every string constant of the product, one per line, with … for formatted values."""
    found = []
    for folder in FOLDERS:
        for file in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text())):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    found.append(re.sub(r"%\.?\d*[sdf]", "…", node.value))
                elif isinstance(node, ast.JoinedStr):
                    parts = [part.value if isinstance(part, ast.Constant) else "…" for part in node.values]
                    found.append("".join(map(str, parts)))
    return "\n".join(found)


def test_every_flag_exists() -> None:
    named = {flag for code in in_code() for flag in re.findall(r"--[a-z-]+", code)}
    assert len(named) > 15
    assert named <= set(FLAGS)


def test_the_listed_defaults_are_right() -> None:
    for flag, default, _ in table("flag"):
        field = FLAGS[flag.strip("`")]
        said = None if default == "off" else float(default.removesuffix(" s"))
        assert field.default == said, flag


def test_every_metric_exists() -> None:
    shaped = r"(?:num|kv|new|token|cache|evicted|admission|retract|scheduler|queue|inter|generation|watchdog)_[a-z_]+"
    ours = {code.partition("{")[0] for code in in_code() if re.fullmatch(shaped + r"(\{.*\})?", code)}
    of_requests_and_replies = {"num_retractions", "queue_ms", "kv_cache_exhausted", "cache_salt"}
    assert len(ours) > 20
    assert ours - of_requests_and_replies <= set(METRICS)


@pytest.mark.parametrize("name", re.findall(r"[Mm]etrics? `([a-z_]+)", PAGE))
def test_every_named_metric_exists(name: str) -> None:
    assert name in METRICS


def test_the_codes_of_ready_are_complete() -> None:
    sources = "".join((ROOT / "server" / name).read_text() for name in ("metrics/liveness.py", "daemon/loading.py"))
    codes = {code.strip("`") for code, _ in table("code")}
    assert codes == set(re.findall(r'"(engine_[a-z]+|loading|draining)"', sources))


def test_the_exit_codes_are_complete() -> None:
    assert [int(code) for code, _ in table("exit code")] == [0, 1, 2, WATCHDOG_EXIT_CODE]


@pytest.mark.parametrize("line", [row[0].strip("`") for row in table("line")])
def test_every_listed_log_line_exists(line: str) -> None:
    said = texts()
    pieces = [piece.strip(" =") for piece in re.split(r"…|(?<=because it) ", line)]
    assert all(piece in said for piece in pieces if len(piece) > 2), [p for p in pieces if p not in said]
