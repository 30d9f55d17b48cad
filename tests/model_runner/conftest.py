"""Checkpoints that several tests share: the packaged default model and tiny random ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from transformers import PreTrainedModel

from ebbtide.tokenization.model_files import smollm2_path

from .checkpoints import write_checkpoint
from .reference import load_reference


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The packaged default model's file."""
    path = smollm2_path()
    if not path.is_file():
        pytest.fail(f"There is no {path}; run `ebbtide pull smollm2` before the tests.")
    return path


@pytest.fixture(scope="session")
def smollm2_reference(smollm2: Path) -> PreTrainedModel:
    """The packaged default model in transformers, float32."""
    return load_reference(smollm2)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a tiny random checkpoint of a family, written once a session."""
    folders: dict[str, Path] = {}

    def folder_of(family: str) -> Path:
        if family not in folders:
            folders[family] = write_checkpoint(tmp_path_factory.mktemp(family), family)
        return folders[family]

    return folder_of
