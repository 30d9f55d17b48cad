"""What the README says of flags, targets and files is so."""

from __future__ import annotations

import ast
import re
from dataclasses import Field, fields
from pathlib import Path
from typing import Any

import pytest

from ebbtide.config import (
    AccessConfig,
    LimitsConfig,
    LogConfig,
    RunnerConfig,
    SchedulerConfig,
    ServerConfig,
    WatchdogConfig,
)

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])


def flags_table() -> str:
    """The table as it should stand in the README."""
    lines = ["| flag | default | |", "|---|---|---|"]
    for section in (ServerConfig, AccessConfig, LimitsConfig, RunnerConfig, SchedulerConfig, WatchdogConfig, LogConfig):
        lines.append(f"| **{(section.__doc__ or '').splitlines()[0].rstrip('.')}** | | |")
        lines += [_row(field, section.__annotations__[field.name]) for field in fields(section)]
    return "\n".join(lines)


def _row(field: Field[Any], annotation: str) -> str:
    flag = field.metadata["flag"] or "--" + field.name.replace("_", "-")
    choices = re.search(r"Literal\[(.*)\]", annotation)
    # A bar would end the cell.
    value = "" if choices is None else " " + " \\| ".join(ast.literal_eval(f"[{choices.group(1)}]"))
    metavar = field.metadata["metavar"]
    default = "" if field.default is None or field.default is False or field.default == () else f"{field.default}"
    return f"| `{flag}{value or (f' {metavar}' if metavar else '')}` | {default} | {field.metadata['help']} |"


def test_flags_table_is_that_of_the_configuration() -> None:
    start, end = README.index("<!-- flags"), README.index("<!-- /flags -->")
    table = README[start:end].split("-->", 1)[1].strip()
    assert table == flags_table()


def test_every_make_target_that_is_named_exists() -> None:
    known = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    named = set(re.findall(r"`make ([a-z]+)", README)) | set(re.findall(r"^make ([a-z]+)", README, flags=re.MULTILINE))
    assert {"serve", "test"} <= named <= known


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text())
    assert [target for target in targets if not (page.parent / target).exists()] == []


def test_python_examples_are_python() -> None:
    examples = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    assert examples
    for example in examples:
        ast.parse(example)


def test_decision_records_are_short_and_complete() -> None:
    for record in (ROOT / "docs" / "decisions").glob("*.md"):
        text = record.read_text()
        assert len(text.splitlines()) <= 40, record.name
        for part in ("Context", "Decision", "Alternatives", "Consequences", "How to tell it was wrong"):
            assert f"**{part}" in text, f"{record.name} lacks {part}"


if __name__ == "__main__":  # the README's table anew, after a flag has changed: python -m tests.test_readme
    start = README.index("-->", README.index("<!-- flags")) + len("-->\n")
    (ROOT / "README.md").write_text(README[:start] + flags_table() + "\n" + README[README.index("<!-- /flags -->") :])
