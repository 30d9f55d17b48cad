"""Checks the import rules and the restrictions of the pure files in docs/architecture.md."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("server", "scheduler", "model_runner", "tokenizer_mgr", "detokenizer")

# folder or file -> additional folders it may import, because it assembles the parts.
COMPOSITION = {
    "server": {"tokenizer_mgr"},
    "scheduler/process.py": {"model_runner"},
    "ebbtide/commands": set(FOLDERS),
}
ROOMS = ("commands", "hub", "messages", "runtime", "tokenization")  # the folders of ebbtide/ that are not links
DISPATCHER = "server/cli.py"
HTTP_MAY_IMPORT = ("route",)  # the modules of server/ that server/http/ may import
SERVER_ROOT = {"__init__", "cli", "flags", "app", "route", "state", "frontend", "loaded_models"}
APIS = ("openai", "anthropic", "sglang")  # the folders of server/api/ that may not import each other
IMPURE_SCHEDULER_FILES = {"process.py", "watchdog.py", "publisher.py", "grammar_compiler.py"}
IMPURE_MODULES = {"torch", "zmq", "time", "datetime", "random", "secrets", "uuid", "asyncio", "socket", "threading"}
IMPURE_NAMES = {"os.urandom", "os.getrandom", "numpy.random", "np.random"}


@dataclass(frozen=True)
class Import:
    """One imported module, absolute, and how it was written. level: number of leading dots."""

    module: str
    line: int
    level: int = 0


def imports_of(tree: ast.Module, package: str) -> Iterator[Import]:
    """Every import of a file in ``package``; ``from . import x`` counts as ``package.x``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (Import(alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parts = package.split(".")
            base = parts[: len(parts) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            yield Import(module, node.lineno, node.level)
            # A name may be a module: `from ebbtide import scheduler` reaches into scheduler/.
            yield from (Import(f"{module}.{alias.name}", node.lineno, node.level) for alias in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("import_module", "importlib.import_module"):
            yield from (Import(str(arg.value), node.lineno) for arg in node.args[:1] if isinstance(arg, ast.Constant))


def allowed_folders(path: str) -> set[str]:
    """The folders that the file may import from besides its own."""
    return {
        name for place, names in COMPOSITION.items() if path == place or path.startswith(f"{place}/") for name in names
    }


def violations(path: str, source: str) -> list[str]:
    """The violations in the file ``path`` (relative to the root, links not followed); empty if there are none."""
    tree = ast.parse(source)
    folder = path.split("/")[0]
    prefix = [] if folder == "ebbtide" else ["ebbtide"]
    package = ".".join([*prefix, *path.split("/")[:-1]])
    found = list(imports_of(tree, package))
    problems = [problem for item in found for problem in _import_problems(path, folder, item)]
    if folder == "scheduler" and path.split("/")[-1] not in IMPURE_SCHEDULER_FILES:
        problems += _purity_problems(path, tree, found)
    return sorted(set(problems))


def _import_problems(path: str, folder: str, item: Import) -> Iterator[str]:
    where = f"{path}:{item.line}"
    root, _, rest = item.module.partition(".")
    if root in FOLDERS and item.level == 0:
        yield f"{where}: import {root}/ as ebbtide.{root}, not by its bare name"
    if root == "torch" and folder != "model_runner":
        yield f"{where}: torch belongs to model_runner/ only"
    if root == "ebbtide" and rest:
        problem = _inner_problem(path, folder, rest.split(".")[0], relative=item.level > 0) or _room_problem(path, rest)
        if problem is not None:
            yield f"{where}: {problem}"


def _inner_problem(path: str, folder: str, target: str, *, relative: bool) -> str | None:
    """The reason why ``path`` must not import ``ebbtide.<target>``; "" if it may."""
    if target in FOLDERS and target != folder:
        return None if target in allowed_folders(path) else f"{folder}/ must not import {target}/"
    if target == "commands" and folder in FOLDERS and path != DISPATCHER:
        return f"only {DISPATCHER} may import the commands"
    own = target == folder or (folder == "ebbtide" and path.count("/") == 1)
    if own and not relative:
        return f"inside {folder}/ import relatively"
    if relative and target != folder and folder in FOLDERS:
        return f"across folders import ebbtide.{target} by its full name"
    return None


def _room_problem(path: str, target: str) -> str | None:
    """The reason why a module of server/ must not import ``ebbtide.<target>``; "" if it may."""
    room = target.split(".")[1] if target.startswith("server.") else None
    if path.startswith("server/http/") and room not in (None, "http", *HTTP_MAY_IMPORT):
        return "server/http/ must not import the rest of server/"
    if room == "daemon" and path != DISPATCHER and not path.startswith("server/daemon/"):
        return f"only {DISPATCHER} may import server/daemon/"
    own = path.split("/")[2:3] if path.startswith("server/api/") else []
    others = [api for api in APIS if own and own[0] in (*APIS, "chat") and own[0] != api]
    if any(f"{target}.".startswith(f"server.api.{other}.") for other in others):
        return "the APIs do not import each other: move what they share to server/api/ or server/api/chat/"
    return None


def _purity_problems(path: str, tree: ast.Module, found: list[Import]) -> Iterator[str]:
    for item in found:
        if item.module.split(".")[0] in IMPURE_MODULES or item.module in IMPURE_NAMES:
            yield f"{path}:{item.line}: {item.module} in a pure scheduler file"
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and ast.unparse(node) in IMPURE_NAMES:
            yield f"{path}:{node.lineno}: {ast.unparse(node)} in a pure scheduler file"


def source_files() -> list[Path]:
    """Every Python file of the product, each once: the links in ebbtide/ are not followed."""
    files = list((ROOT / "ebbtide").glob("*.py"))
    for folder in (*FOLDERS, *(f"ebbtide/{room}" for room in ROOMS)):
        files += (ROOT / folder).rglob("*.py")
    return sorted(files)


def test_every_folder_is_linked_into_the_package() -> None:
    for name in FOLDERS:
        link = ROOT / "ebbtide" / name
        assert link.is_symlink(), f"ebbtide/{name} is not a link"
        assert str(link.readlink()) == f"../{name}"
        assert (link / "__init__.py").is_file()


def test_the_root_of_server_holds_only_the_listed_modules() -> None:
    assert {path.stem for path in (ROOT / "server").glob("*.py")} == SERVER_ROOT


@pytest.mark.parametrize("path", source_files(), ids=lambda path: str(path.relative_to(ROOT)))
def test_file_keeps_to_the_import_rules(path: Path) -> None:
    assert violations(path.relative_to(ROOT).as_posix(), path.read_text()) == []


BROKEN = {
    "absolute import of one's own folder": ("scheduler/core.py", "from ebbtide.scheduler.request import Request"),
    "own folder through the package": ("scheduler/core.py", "from ebbtide import scheduler"),
    "bare name of a folder": ("scheduler/core.py", "import scheduler.request"),
    "bare name of another folder": ("server/app.py", "from detokenizer.stream import Stream"),
    "another folder": ("scheduler/core.py", "from ebbtide.detokenizer.stream import Stream"),
    "another folder through the package": ("detokenizer/stream.py", "from ebbtide import scheduler"),
    "another folder inside a function": ("scheduler/core.py", "def f():\n    import ebbtide.server.app"),
    "another folder through dots": ("scheduler/memory/ledger.py", "from ...server import app"),
    "another folder by import_module": (
        "server/app.py",
        "import importlib\nimportlib.import_module('ebbtide.scheduler')",
    ),
    "the runner outside process.py": ("scheduler/core.py", "from ebbtide.model_runner import build_runner"),
    "a folder from the vocabulary": ("ebbtide/messages.py", "from .scheduler.request import Request"),
    "a folder from the vocabulary by name": ("ebbtide/messages.py", "from ebbtide.scheduler import core"),
    "the vocabulary by its own full name": ("ebbtide/plan.py", "from ebbtide.messages import Part"),
    "a command from a part": ("server/app.py", "from ebbtide.commands.pull import pull"),
    "the vocabulary through dots": ("scheduler/core.py", "from ..messages import TokenBatch"),
    "torch outside the runner": ("server/app.py", "import torch.nn as nn"),
    "torch in a command": ("ebbtide/commands/bench.py", "from torch import Tensor"),
    "torch in the scheduler": ("scheduler/process.py", "def f():\n    import torch"),
    "a clock": ("scheduler/core.py", "import time"),
    "a clock by name": ("scheduler/memory/ledger.py", "from time import monotonic"),
    "dates": ("scheduler/batching/policies.py", "from datetime import datetime"),
    "randomness": ("scheduler/batching/policies.py", "import random"),
    "randomness of the system": ("scheduler/batching/policies.py", "import os\nos.urandom(8)"),
    "randomness of numpy": ("scheduler/batching/policies.py", "import numpy as np\nnp.random.default_rng()"),
    "an API from HTTP": ("server/http/error_replies.py", "from ..api.anthropic.errors import anthropic_error"),
    "the state from HTTP": ("server/http/access.py", "from ..state import AppState"),
    "another room from HTTP": ("server/http/auth.py", "from .. import metrics"),
    "the daemon from the frontend": ("server/frontend.py", "from .daemon.children import Children"),
    "the daemon from a command": ("ebbtide/commands/dump.py", "from ebbtide.server.daemon import launch"),
    "the APIs from HTTP": ("server/http/streaming.py", "from .. import api"),
    "one API from another": ("server/api/anthropic/messages.py", "from ..openai.chat import prepare"),
    "an API from what they share": ("server/api/chat/prepared_chat.py", "from ..openai.chat import prepare"),
    "one API from another as a module": ("server/api/sglang/generate.py", "from .. import openai"),
    "sockets": ("scheduler/core.py", "import zmq.asyncio"),
}


@pytest.mark.parametrize(("path", "source"), BROKEN.values(), ids=BROKEN.keys())
def test_checker_finds(path: str, source: str) -> None:
    assert violations(path, source) != []


ALLOWED = {
    "a neighbour": ("scheduler/core.py", "from .memory.ledger import Ledger"),
    "a neighbour one folder up": ("scheduler/memory/radix_cache.py", "from ..request import Request"),
    "the vocabulary": ("scheduler/core.py", "from ebbtide.messages import TokenBatch\nimport ebbtide.plan"),
    "the front's two folders": ("server/app.py", "from ebbtide.tokenizer_mgr.prompts import Prompts"),
    "the runner's builder": ("scheduler/process.py", "from ebbtide.model_runner import build_runner\nimport time, zmq"),
    "the dispatcher": ("server/cli.py", "from ebbtide.commands import bench"),
    "a command": ("ebbtide/commands/simulate.py", "from ebbtide.scheduler.core import Scheduler"),
    "torch in the runner": ("model_runner/layers/linear.py", "import torch"),
    "the impure files": ("scheduler/health/watchdog.py", "import time"),
    "a vocabulary neighbour": ("ebbtide/plan.py", "from .messages import Part"),
    "the route table from HTTP": ("server/http/openapi.py", "from ..route import Route\nfrom .auth import Keys"),
    "the daemon from the command line": ("server/cli.py", "def f():\n    from .daemon.launch import launch"),
    "what the APIs share": (
        "server/api/openai/chat.py",
        "from ..chat.chat_request import ChatBody\nfrom .. import usage",
    ),
    "an unrelated attribute": (
        "scheduler/core.py",
        "class A:\n    time: int\n\ndef f(a: A) -> int:\n    return a.time",
    ),
}


@pytest.mark.parametrize(("path", "source"), ALLOWED.values(), ids=ALLOWED.keys())
def test_checker_accepts(path: str, source: str) -> None:
    assert violations(path, source) == []


# ---------------------------------------------------------------------- import circles


def import_graph(sources: dict[str, str]) -> dict[str, list[str]]:
    """The modules that each module imports anywhere in its text, also for type checking only.

    sources: absolute module name → text. Modules outside ``sources`` are left out. ``from . import x`` counts as the
    module ``x`` if there is one, else as the package.
    """
    graph = {}
    for module, source in sources.items():
        package = module.removesuffix(".__init__") if module.endswith(".__init__") else module.rpartition(".")[0]
        named = {item.module for item in imports_of(ast.parse(source), package)}
        targets = {name if name in sources else f"{name}.__init__" for name in named}
        inner = {target for target in targets if target.removesuffix(".__init__") not in {"", package}}
        # A submodule imports its own package itself only if it imports a name that is not a module.
        own = f"{package}.__init__"
        if own in targets and any(n.rpartition(".")[0] == package and n not in sources for n in named):
            inner.add(own)
        graph[module] = sorted((inner & sources.keys()) - {module})
    return graph


def find_circle(graph: dict[str, list[str]]) -> list[str]:
    """The modules of one circle, in order; empty if there is none. Depth-first search with a path."""
    done: set[str] = set()

    def visit(module: str, path: list[str]) -> list[str]:
        if module in path:
            return path[path.index(module) :]
        if module in done:
            return []
        circles = (visit(target, [*path, module]) for target in graph[module])
        circle = next((found for found in circles if found), [])
        done.add(module)
        return circle

    return next((found for module in graph if (found := visit(module, []))), [])


@pytest.mark.parametrize("folder", FOLDERS)
def test_folder_has_no_import_circle(folder: str) -> None:
    files = (ROOT / folder).rglob("*.py")
    sources = {".".join(["ebbtide", *path.relative_to(ROOT).with_suffix("").parts]): path.read_text() for path in files}
    assert find_circle(import_graph(sources)) == []


CIRCLES = {
    "direct": {"p.a": "from .b import B", "p.b": "from .a import A"},
    "over three": {"p.a": "from . import b", "p.b": "from .q.c import C", "p.q.c": "from ..a import A"},
    "for type checking": {"p.a": "import p.b", "p.b": "if TYPE_CHECKING:\n    from .a import A"},
    "inside a function": {"p.a": "from .b import B", "p.b": "def f():\n    from . import a"},
    "with the package": {"p.__init__": "from .a import A", "p.a": "from . import B"},
}
CIRCLE_FREE = {
    "a diamond": {"p.a": "from . import b, c", "p.b": "from .d import D", "p.c": "from .d import D", "p.d": ""},
    "neighbours of a package": {"p.__init__": "from .a import A", "p.a": "from . import b", "p.b": ""},
    "other packages": {"p.a": "import q.b\nfrom p2.a import A", "p.b": "from .a import A"},
}


@pytest.mark.parametrize("sources", CIRCLES.values(), ids=CIRCLES)
def test_import_circle_is_found(sources: dict[str, str]) -> None:
    assert set(find_circle(import_graph(sources))) == set(sources)


@pytest.mark.parametrize("sources", CIRCLE_FREE.values(), ids=CIRCLE_FREE)
def test_imports_without_a_circle_pass(sources: dict[str, str]) -> None:
    assert find_circle(import_graph(sources)) == []


# The attributes that scheduler/lifecycle.py alone may write. ``reset_for_retract`` marks a request as retracted.
LIFECYCLE_ONLY = {"phase", "row", "is_retracted", "num_retracted"}
LIFECYCLE_WRITERS = {"scheduler/lifecycle.py": LIFECYCLE_ONLY, "scheduler/request.py": {"is_retracted"}}
LIFECYCLE_LISTS = {"running", "free_rows", "waiting", "requests"}
MUTATORS = {"append", "remove", "pop", "clear", "insert", "extend", "put"}


def lifecycle_writes(source: str) -> set[str]:
    """The attributes of ``LIFECYCLE_ONLY`` and the lists of ``LIFECYCLE_LISTS`` that the source writes."""
    written: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and node.attr in LIFECYCLE_ONLY:
            written.add(node.attr)
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in MUTATORS
            and isinstance(node.func.value, ast.Attribute)
            and node.func.value.attr in LIFECYCLE_LISTS
        ):
            written.add(node.func.value.attr)
    return written


def test_only_the_lifecycle_writes_phases_queue_rows_and_their_counters() -> None:
    for path in sorted((ROOT / "scheduler").rglob("*.py")):
        name = path.relative_to(ROOT).as_posix()
        allowed = LIFECYCLE_WRITERS.get(name, set()) | (LIFECYCLE_LISTS if name == "scheduler/lifecycle.py" else set())
        assert lifecycle_writes(path.read_text()) <= allowed, name


def test_the_lifecycle_rule_finds_each_kind_of_write() -> None:
    source = "req.phase = 1\nself.num_retracted += 1\nlifecycle.running.remove(req)\nself.waiting.put(req, front=True)"
    assert lifecycle_writes(source) == {"phase", "num_retracted", "running", "waiting"}


MAX_FILES = 25  # of one folder, without __init__.py


@pytest.mark.parametrize("room", [*FOLDERS, "ebbtide", "tests", "bench", "tools", "docs"])
def test_no_folder_has_too_many_files(room: str) -> None:
    for folder in [ROOT / room, *(path for path in (ROOT / room).rglob("*") if path.is_dir())]:
        files = [path for path in folder.iterdir() if path.is_file() and path.suffix in {".py", ".md", ".cpp"}]
        assert len([path for path in files if path.name != "__init__.py"]) <= MAX_FILES, folder
