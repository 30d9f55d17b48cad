"""Hooks of mkdocs: adds the decision records to the navigation, and shows links to source files as plain text."""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from typing import Any

DECISIONS = "Decisions"


def on_config(config: Any) -> Any:
    """Fill the navigation entry ``Decisions`` with the pages of docs/decisions and its subfolders."""
    pages = Path(config.docs_dir, "decisions").rglob("*.md")
    ordered = sorted(pages, key=lambda page: (page.name != "README.md", page.name))
    names = [str(page.relative_to(config.docs_dir)) for page in ordered]
    for section in _sections(config.nav):
        if DECISIONS in section:
            section[DECISIONS] = names
    return config


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Keep only the text of a link that leaves docs/: the site does not contain the repository's other files."""
    folder = PurePosixPath("docs", page.file.src_uri).parent

    def text_or_link(link: re.Match[str]) -> str:
        return link[0] if _normal(folder / link[2]).startswith("docs/") else link[1]

    return re.sub(r"\[([^\]]*)\]\((\.\./[^)#]+)(?:#[^)]*)?\)", text_or_link, markdown)


def _sections(nav: list[Any]) -> list[dict[str, Any]]:
    """Yield every mapping in the navigation, at any depth."""
    found = [entry for entry in nav if isinstance(entry, dict)]
    return found + [inner for entry in found for pages in entry.values() if pages for inner in _sections(pages)]


def _normal(path: PurePosixPath) -> str:
    """The path without ``..``."""
    parts: list[str] = []
    for part in path.parts:
        if part == "..":
            parts.pop()
        else:
            parts.append(part)
    return "/".join(parts)
