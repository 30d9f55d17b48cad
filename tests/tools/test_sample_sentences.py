"""The script that draws random sentences finds every kind of prose, at its line, the same for the same seed."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "tools" / "sample_sentences.py"
SOURCE = '''"""A docstring of one sentence. A second one,
over two lines.

Attributes:
    size: number of tokens per page, e.g. 16.
    rate: tokens per second.
"""
x = 1  # a trailing comment with words
# A comment that goes on
# in the next line.
raise ValueError(f"'{x}' must be a positive number.")  # noqa: B904
'''
PAGE = """# A heading of the page

One sentence here ends. Another sentence follows it.
- a bullet with some words
```
this is code, not a sentence
```
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for package in ("ebbtide", "scheduler", "docs"):
        (tmp_path / package).mkdir()
    (tmp_path / "ebbtide" / "scheduler").symlink_to("../scheduler")
    (tmp_path / "scheduler" / "core.py").write_text(SOURCE)
    (tmp_path / "docs" / "page.md").write_text(PAGE)
    (tmp_path / "README.md").write_text("")
    return tmp_path


def drawn(*args: str) -> list[str]:
    return subprocess.run(
        [sys.executable, SCRIPT, *args], check=True, capture_output=True, text=True
    ).stdout.splitlines()


def test_every_kind_of_prose_is_found_once_at_its_line(tree: Path) -> None:
    assert drawn("100", "--root", str(tree)) == [
        "docs/page.md:1: # A heading of the page",
        "docs/page.md:3: Another sentence follows it.",
        "docs/page.md:3: One sentence here ends.",
        "docs/page.md:4: - a bullet with some words",
        "scheduler/core.py:1: A docstring of one sentence.",
        "scheduler/core.py:1: A second one, over two lines.",
        "scheduler/core.py:5: size: number of tokens per page, e.g. 16.",
        "scheduler/core.py:6: rate: tokens per second.",
        "scheduler/core.py:8: a trailing comment with words",
        "scheduler/core.py:9: A comment that goes on in the next line.",
        "scheduler/core.py:11: '{…}' must be a positive number.",
    ]


def test_a_seed_draws_the_same_sentences_again() -> None:
    first = drawn("20", "--seed", "1")
    assert len(first) == 20
    assert drawn("20", "--seed", "1") == first
    assert drawn("20", "--seed", "2") != first
