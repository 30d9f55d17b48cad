"""Copies of the tiny checkpoints with other fields in their JSON files or other tensors."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor

WEIGHTS = "model.safetensors"


def changed_copy(source: Path, folder: Path, **fields: Any) -> Path:
    """A copy of a checkpoint with other fields in its config.json; the field None removes one. Returns ``folder``."""
    shutil.copytree(source, folder, dirs_exist_ok=True)
    change_json(folder / "config.json", **fields)
    return folder


def change_json(path: Path, **fields: Any) -> None:
    """Set fields of a JSON file."""
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def change_tensors(folder: Path, change: Callable[[dict[str, Tensor]], object]) -> None:
    """Let ``change`` modify the tensors of the single weights file."""
    tensors = load_file(folder / WEIGHTS)
    change(tensors)
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
