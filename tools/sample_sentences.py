#!/usr/bin/env python3
"""Draw random sentences from the prose of the repository, to rate its English.

Sources are the docstrings, comments and strings (help texts, log lines, error messages) of the Python packages, the
README and the pages of docs/. The same seed gives the same sentences for the same tree.
"""

from __future__ import annotations

import argparse
import ast
import io
import random
import re
import tokenize
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

PACKAGES = ("ebbtide", "server", "scheduler", "model_runner", "tokenizer_mgr", "detokenizer")
MIN_WORDS = 4
SENTENCE_END = re.compile(r"(?<=[.!?])[\"')]?\s+(?=[\"'(`*A-Z0-9])")
ABBREVIATION = re.compile(r"\b(?:e\.g|i\.e|vs|cf|etc)\.$")
WORD = re.compile(r"(?<!\S)[\"'(`*\[]*[A-Za-z][\w'`*\])-]*[\"'`).,:;?!]*(?!\S)")
BLOCK_START = re.compile(r"\s*(?:[-*+>|#]|\d+\. )|\s{4,}\S+: ")
NO_PROSE = re.compile(r"#\s*(?:noqa|type:|ruff:|pragma|!)")


@dataclass(frozen=True, slots=True, order=True)
class Sentence:
    """One sentence and the place where it starts."""

    path: str
    line: int
    text: str


def sentences_of(lines: Iterable[tuple[int, str]], path: str) -> Iterator[Sentence]:
    """Split numbered lines into sentences. A blank line, a bullet, a table row or an attribute starts a new one."""
    block: list[tuple[int, str]] = []
    for line, text in (*lines, (0, "")):
        if block and (not text.strip() or BLOCK_START.match(text)):
            yield from _split(block, path)
            block = []
        if text.strip():
            block.append((line, text.strip()))


def python_sentences(source: str, path: str) -> Iterator[Sentence]:
    """The sentences of one Python file."""
    for comment in _comment_blocks(source):
        yield from sentences_of(comment, path)
    tree = ast.parse(source)
    parts = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in ast.walk(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            text = "".join(str(part.value) if isinstance(part, ast.Constant) else "{…}" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in parts:
            text = node.value
        else:
            continue
        yield from sentences_of(enumerate(text.split("\n"), node.lineno), path)


def markdown_sentences(source: str, path: str) -> Iterator[Sentence]:
    """The sentences of one page, without its code blocks."""
    fenced = False
    lines = []
    for number, text in enumerate(source.split("\n"), 1):
        if text.lstrip().startswith("```"):
            fenced = not fenced
            text = ""
        lines.append((number, "" if fenced else text))
    yield from sentences_of(lines, path)


def all_sentences(root: Path) -> list[Sentence]:
    """Every sentence of the repository at ``root``, sorted, without duplicates."""
    found: set[Sentence] = set()
    for package in PACKAGES:
        # `ebbtide` links to the other folders: each is read once, by its own name.
        for path in sorted((root / package).rglob("*.py")):
            if not any(parent.is_symlink() for parent in path.parents if parent != root):
                found.update(python_sentences(path.read_text(), str(path.relative_to(root))))
    for path in (root / "README.md", *(root / "docs").glob("*.md")):
        found.update(markdown_sentences(path.read_text(), str(path.relative_to(root))))
    return sorted(found)


def _comment_blocks(source: str) -> Iterator[list[tuple[int, str]]]:
    """Comments with their line numbers. Whole-line comments that follow each other form one block."""
    block: list[tuple[int, str]] = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT or NO_PROSE.match(token.string):
            continue
        line, text = token.start[0], token.string.lstrip("# ")
        trailing = bool(token.line[: token.start[1]].strip())
        if block and (trailing or line != block[-1][0] + 1):
            yield block
            block = []
        block.append((line, text))
        if trailing:
            yield block
            block = []
    yield block


def _split(block: list[tuple[int, str]], path: str) -> Iterator[Sentence]:
    starts: list[tuple[int, int]] = []  # (offset in the joined text, line)
    joined = ""
    for line, text in block:
        starts.append((len(joined), line))
        joined += text + " "
    begin = 0
    for end in [*(match.end() for match in SENTENCE_END.finditer(joined)), len(joined)]:
        text = joined[begin:end].strip()
        if ABBREVIATION.search(text):
            continue
        if len(WORD.findall(text)) >= MIN_WORDS:
            yield Sentence(path, max(line for offset, line in starts if offset <= begin), text)
        begin = end


def main() -> None:
    parser = argparse.ArgumentParser(description="Print random sentences of the repository's prose as file:line: text.")
    parser.add_argument("num", nargs="?", type=int, default=200, help="number of sentences (default 200)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the draw (default 0)")
    parser.add_argument("--only", default="", help="draw only from paths that start with this text")
    parser.add_argument("--root", type=Path, default=Path(__file__).parent.parent, help="root of the repository")
    args = parser.parse_args()
    sentences = [sentence for sentence in all_sentences(args.root) if sentence.path.startswith(args.only)]
    drawn = random.Random(args.seed).sample(sentences, min(args.num, len(sentences)))
    for sentence in sorted(drawn):
        print(f"{sentence.path}:{sentence.line}: {sentence.text}")


if __name__ == "__main__":
    main()
