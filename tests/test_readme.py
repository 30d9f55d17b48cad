"""Checks the README and the pages in docs/: flags, make targets, links, examples, decision records."""

from __future__ import annotations

import ast
import re
from dataclasses import Field, fields
from pathlib import Path
from typing import Any

import pytest

from ebbtide.server.command_line.parser import SECTIONS

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()
FLAGS_PAGE = ROOT / "docs" / "flags.md"
INSTALL = (ROOT / "docs" / "install.md").read_text()
FOLDERS = ("ebbtide", "server", "scheduler", "model_runner", "tokenizer_mgr", "detokenizer", "tests", "bench", "tools")
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])


def flags_table() -> str:
    """The table that docs/flags.md must contain."""
    lines = ["| flag | default | |", "|---|---|---|"]
    for section in SECTIONS:
        lines.append(f"| **{(section.__doc__ or '').splitlines()[0].rstrip('.')}** | | |")
        lines += [_row(field, section.__annotations__[field.name]) for field in fields(section)]
    return "\n".join(lines)


def _row(field: Field[Any], annotation: str) -> str:
    flag = field.metadata["flag"] or "--" + field.name.replace("_", "-")
    literal = re.search(r"Literal\[(.*)\]", annotation)
    choices = ast.literal_eval(f"[{literal.group(1)}]") if literal else field.metadata.get("choices", ())
    value = "".join([" ", " \\| ".join(choices)]) if choices else ""  # a bar alone would end the cell
    metavar = field.metadata["metavar"]
    default = "" if field.default is None or field.default is False or field.default == () else f"{field.default}"
    return f"| `{flag}{value or (f' {metavar}' if metavar else '')}` | {default} | {field.metadata['help']} |"


def test_flags_table_is_that_of_the_configuration() -> None:
    page = FLAGS_PAGE.read_text()
    start, end = page.index("<!-- flags"), page.index("<!-- /flags -->")
    table = page[start:end].split("-->", 1)[1].strip()
    assert table == flags_table()


def test_every_make_target_that_is_named_exists() -> None:
    known = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    for page in (README, INSTALL):
        named = set(re.findall(r"`make ([a-z]+)", page)) | set(re.findall(r"^make ([a-z]+)", page, flags=re.MULTILINE))
        assert {"serve", "test"} <= named <= known


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) <= 200


def test_the_index_links_every_page() -> None:
    index = (ROOT / "docs" / "README.md").read_text()
    pages = {path.name for path in (ROOT / "docs").glob("*.md")} - {"README.md"}
    assert pages <= set(re.findall(r"\]\(([a-z-]+\.md)\)", index))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_pages_have_a_target(page: Path) -> None:
    targets = re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text())
    assert [target for target in targets if not (page.parent / target).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_that_a_page_names_exist(page: Path) -> None:
    files = set(re.findall(rf"\b(?:{'|'.join(FOLDERS)})/[\w/.]*\.(?:py|md|cpp)", page.read_text()))
    assert [file for file in sorted(files) if not (ROOT / file).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_examples_are_python(page: Path) -> None:
    examples = re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.DOTALL)
    assert examples or page != ROOT / "README.md"
    for example in examples:
        ast.parse(example)


def test_decision_records_are_short_and_complete() -> None:
    for record in (ROOT / "docs" / "decisions").rglob("[0-9]*.md"):
        text = record.read_text()
        assert len(text.splitlines()) <= 40, record.name
        for part in ("Context", "Decision", "Alternatives", "Consequences", "How to tell it was wrong"):
            assert f"**{part}" in text, f"{record.name} lacks {part}"


if __name__ == "__main__":  # writes the table of docs/flags.md after a flag has changed: python -m tests.test_readme
    text = FLAGS_PAGE.read_text()
    start = text.index("-->", text.index("<!-- flags")) + len("-->\n")
    FLAGS_PAGE.write_text(text[:start] + flags_table() + "\n" + text[text.index("<!-- /flags -->") :])
