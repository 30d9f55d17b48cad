"""Checks docs/glossary.md: each symbol exists where the page says, and each name listed as missing is missing."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "glossary.md"
FOLDERS = ("ebbtide", "server", "scheduler", "model_runner", "tokenizer_mgr", "detokenizer")
SECTIONS = ("SGLang: the same name", "SGLang: another name", "vLLM", "Not implemented")
MISSING = SECTIONS[-1]

# SGLang's identifiers, file names, log lines and metrics that the page must list.
RETRACT = """
    schedule_batch.py scheduler.py check_decode_mem new_tokens_required_next_decode evict_from_tree_cache tree_cache
    token_to_kv_pool_allocator available_size retract_decode sorted_indices release_req FINISH_ABORT filter_batch
    new_estimate_ratio hisparse_coordinator offload_kv_cache release_kv_cache is_insert reset_for_retract
    retraction_count is_retracted retracted_stain old_available_tokens old_ratio server_args num_retracted_reqs
    send_to_tokenizer send_output AbortReq new_token_ratio _add_request_to_queue HTTPStatus.INTERNAL_SERVER_ERROR
"""
CHECKER = """
    scheduler_runtime_checker_mixin.py SessionAwareCache available evictable protected session_held uncached total
    _check_pool_invariant total_accounted leak _check_full_pool _check_swa_pool _check_mamba_pool
    self_check_during_busy last_batch on_idle _check_all_pools _check_req_pool _check_tree_cache
    create_scheduler_watchdog WatchdogRaw forward_ct session_aware_cache.py BasePrefixCache match_prefix inner
    session_id SessionSlot req_pool_idx restore_to_req prefix_len device_indices MatchResult enable_streaming_session
    save_from_req session_controller.py
"""
TEXTS = ("Retract requests", "retracted input tokens", "retracted output tokens", "KV events", "speculative decoding")


def rows(section: str) -> list[list[str]]:
    """The cells of a section's table without the header."""
    text = PAGE.read_text(encoding="utf-8").split(f"## {section}\n")[1].split("\n## ")[0]
    lines = [line for line in text.splitlines() if line.startswith("|")][2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def claims() -> list[tuple[str, str]]:
    """(file, symbol) of every name that the page says is implemented."""
    return [(file, symbol.strip("`")) for section in SECTIONS[:-1] for _, file, symbol, _ in rows(section)]


def has(tree: ast.AST, symbol: str) -> bool:
    """True if a file defines ``symbol``, or contains it as a string when it is quoted."""
    if symbol.startswith('"'):
        texts = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant))
        return any(isinstance(text, str) and symbol.strip('"') in text for text in texts)
    path, _, parameter = symbol.rstrip(")").partition("(")
    scope: ast.AST | None = tree
    for name in path.split("."):
        scope = None if scope is None else dict(members(scope)).get(name)
    return scope is not None and (not parameter or parameter in parameters(scope))


def members(scope: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """Names that a module or class defines; for a class, also those assigned through ``self``."""
    for node in ast.iter_child_nodes(scope):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name, node
        elif isinstance(node, ast.AnnAssign | ast.Assign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from ((target.id, node) for target in targets if isinstance(target, ast.Name))
    if isinstance(scope, ast.ClassDef):
        for node in ast.walk(scope):
            if (
                isinstance(node, ast.Attribute)
                and isinstance(node.ctx, ast.Store)
                and ast.unparse(node.value) == "self"
            ):
                yield node.attr, node


def parameters(function: ast.AST) -> set[str]:
    """The names of a function's parameters."""
    return {node.arg for node in ast.walk(function) if isinstance(node, ast.arg)}


def parsed(file: str) -> ast.Module:
    """A source file of the repository."""
    return ast.parse((ROOT / file).read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def sources() -> dict[str, ast.Module]:
    """Every source file that is not a test."""
    files = [file for folder in FOLDERS for file in (ROOT / folder).rglob("*.py")]
    return {file.relative_to(ROOT).as_posix(): ast.parse(file.read_text(encoding="utf-8")) for file in files}


@pytest.mark.parametrize(("file", "symbol"), claims(), ids=lambda value: str(value))
def test_each_symbol_is_where_the_page_says(file: str, symbol: str) -> None:
    assert has(parsed(file), symbol), f"{file} does not define {symbol}: update docs/glossary.md"


def test_names_in_the_first_table_are_the_same_here() -> None:
    for name, file, symbol, _ in rows(SECTIONS[0]):
        if name.startswith("`") and not symbol.startswith('`"'):
            last = re.split(r"[.(]", symbol.strip("`)"))[-1]
            assert name.strip("`") in (last, Path(file).stem), symbol


@pytest.mark.parametrize("name", [*RETRACT.split(), *CHECKER.split(), *TEXTS])
def test_the_page_lists_every_name(name: str) -> None:
    assert name in {row[0].strip("`") for section in SECTIONS for row in rows(section)}


def test_names_listed_as_not_implemented_do_not_exist(sources: dict[str, ast.Module]) -> None:
    missing = {row[0].strip("`") for row in rows(MISSING) if row[0].startswith("`")}
    files = {Path(file).name for file in sources}
    defined = {
        node.name
        for tree in sources.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    }
    assert missing & (defined | files) == set(), "it exists now: move it to its table in docs/glossary.md"


def test_the_lookup_finds_defined_symbols_only() -> None:
    tree = ast.parse(
        'LIMIT = 3\nclass A:\n    field: int\n    def __init__(self):\n        self.kept = {"a key": 1}\n'
        "    def method(self, *, flag):\n        local = flag\n"
    )
    here = ("LIMIT", "A", "A.field", "A.kept", "A.method", "A.method(flag)", '"a key"')
    assert all(has(tree, symbol) for symbol in here)
    gone = ("local", "B", "A.local", "field", "A.method(other)", '"another key"', "A.field.x", "A.method.x")
    assert not any(has(tree, symbol) for symbol in gone)
