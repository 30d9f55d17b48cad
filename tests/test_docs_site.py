"""The documentation site without building it: its navigation, its hooks, and the anchors of links between pages."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from tools.docs_site import on_config, on_page_markdown

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PAGES = sorted([ROOT / "README.md", *DOCS.rglob("*.md")])


def navigation() -> list[str]:
    """Every page in the navigation of the site."""
    config = SimpleNamespace(**yaml.safe_load((ROOT / "mkdocs.yml").read_text()) | {"docs_dir": str(DOCS)})
    return list(pages_in(on_config(config).nav))


def pages_in(entry: Any) -> list[str]:
    if isinstance(entry, str):
        return [entry]
    return [page for part in (entry.values() if isinstance(entry, dict) else entry) for page in pages_in(part)]


def test_every_page_is_in_the_navigation_once() -> None:
    assert sorted(navigation()) == sorted(str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md"))


def anchors(page: Path) -> set[str]:
    """The anchors of the page's headings, with the characters that GitHub and mkdocs keep."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\s-]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_anchor_of_a_link_exists(page: Path) -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]*)#([^)]+)\)", page.read_text())
    targets = [((page.parent / path) if path else page, anchor) for path, anchor in links]
    assert [f"{path}#{anchor}" for path, anchor in targets if anchor not in anchors(path)] == []


@pytest.mark.parametrize(
    ("source", "shown"),
    [
        ("see [plan.py](../ebbtide/plan.py).", "see plan.py."),
        ("[a](../server/app.py) and [b](install.md)", "a and [b](install.md)"),
        ("[rules](../docs/contributing.md#rules)", "[rules](../docs/contributing.md#rules)"),
    ],
)
def test_only_links_that_leave_the_site_become_text(source: str, shown: str) -> None:
    page = SimpleNamespace(file=SimpleNamespace(src_uri="architecture.md"))
    assert on_page_markdown(source, page=page, config=None, files=None) == shown


def test_pages_of_a_folder_may_link_upwards() -> None:
    page = SimpleNamespace(file=SimpleNamespace(src_uri="decisions/0001.md"))
    text = "[install](../install.md), [app](../../server/app.py)"
    assert on_page_markdown(text, page=page) == "[install](../install.md), app"
