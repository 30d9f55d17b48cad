"""The processes of a daemon import no more than they need: a large import costs a second and 200 MiB."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from ..model_runner.checkpoints import write_checkpoint
from ..model_runner.families import FAMILIES
from ..model_runner.gguf_files import write_gguf

# Python imports this module at the start of each process.
REPORTER = """
import atexit, json, pathlib, sys

def report():
    names = sorted({name.partition(".")[0] for name in sys.modules})
    path = pathlib.Path(__file__).parent / (pathlib.Path(sys.argv[0]).parent.name + ".modules")
    path.write_text(json.dumps(names))

atexit.register(report)
"""
TENSORS = {"torch", "transformers", "numpy", "gguf", "safetensors"}
FORBIDDEN = {"server": TENSORS, "detokenizer": TENSORS | {"tokenizers", "fastapi"}, "scheduler": {"transformers"}}


def gguf(folder: Path) -> Path:
    write_gguf(folder / "tiny.gguf", FAMILIES["llama"].model(seed=7), "llama")
    return folder / "tiny.gguf"


def hugging_face(folder: Path) -> Path:
    return write_checkpoint(folder / "m", "qwen3")


@pytest.mark.parametrize("write", [gguf, pytest.param(hugging_face, marks=pytest.mark.soak)])
def test_a_native_model_is_served_without_unneeded_imports(
    write: Callable[[Path], Path], start_daemon: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = write(tmp_path)
    (tmp_path / "sitecustomize.py").write_text(REPORTER)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    daemon = start_daemon("--max-total-tokens", "1024", model=str(model))
    body = {"messages": [{"role": "user", "content": "the tide"}], "max_tokens": 4}
    assert httpx.post(f"{daemon.url}/v1/chat/completions", json=body, timeout=60).status_code == 200
    daemon.signal(signal.SIGTERM)
    assert daemon.wait() == 0
    for process, forbidden in FORBIDDEN.items():
        imported = set(json.loads((tmp_path / f"{process}.modules").read_text()))
        assert "msgspec" in imported, process
        assert imported & forbidden == set(), process
