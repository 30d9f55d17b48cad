"""Each client of tools/clients, in its own environment, against a daemon with scripted answers."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "tools" / "clients"


def module(name: str) -> Any:
    """Import a module of tools/clients, which is a program and not a package."""
    sys.path.insert(0, str(FOLDER))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(FOLDER))


CLIENTS: dict[str, Any] = module("client_table").CLIENTS


@pytest.mark.soak
@pytest.mark.parametrize("name", CLIENTS)
def test_the_round_trip_of_a_client(name: str) -> None:
    outcome = module("run").run_client(CLIENTS[name], module("environments").DEFAULT_FOLDER)
    if outcome.skipped:
        pytest.skip(outcome.skipped)
    assert outcome.fault == ""


def test_every_client_has_a_script_and_every_script_a_client() -> None:
    used = {client.script for client in CLIENTS.values()}
    helpers = {"agents/coding.py", "python/trip.py"}
    files = {str(path.relative_to(FOLDER)) for path in FOLDER.glob("*/*.*") if path.suffix in (".py", ".mjs")}
    assert used == files - helpers


def test_a_client_that_is_not_installed_is_skipped(tmp_path: Path) -> None:
    for name in ("openai", "openai-node"):
        outcome = module("run").run_client(CLIENTS[name], tmp_path)
        assert outcome.skipped == f"not installed; tools/clients/run.py --install {name} installs it"
        assert outcome.fault == ""
