"""Weights and fields of the wrong kind are refused in one sentence that names the file and the field."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from ebbtide.errors import StartupError
from ebbtide.model_runner.checkpoint.config_file import read_config
from ebbtide.model_runner.checkpoint.weights import open_checkpoint
from ebbtide.tokenization.model_files import ModelFiles

from ..changed_checkpoints import change_tensors, changed_copy
from ..driver import load_runner
from ..families import FAMILIES
from ..gguf_files import write_gguf


@pytest.mark.parametrize("dtype", [torch.int32, torch.bool, torch.uint8])
@pytest.mark.parametrize("name", ["model.norm.weight", "model.embed_tokens.weight"])
def test_weights_that_are_not_fractions_are_refused(
    dtype: torch.dtype, name: str, tiny: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = changed_copy(tiny("llama"), tmp_path / "m")
    change_tensors(folder, lambda tensors: tensors.update({name: tensors[name].to(dtype)}))
    with pytest.raises(StartupError, match=r"its weights are quantized \(stored as \w+\)\.$"):
        load_runner(folder)


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        (
            {"rope_parameters": {"rope_type": [], "rope_theta": 1e4}},
            r"rope_parameters\.rope_type in .* text, not \[\]\.$",
        ),
        ({"rope_scaling": {"type": 5, "factor": 2.0}}, r"rope_scaling\.type in .* must be a text, not 5\.$"),
        ({"quantization_config": 5}, r"quantization_config in .*config\.json must be an object, not 5\.$"),
        (
            {"quantization_config": ["awq"]},
            r"quantization_config in .*config\.json must be an object, not \['awq'\]\.$",
        ),
    ],
)
def test_fields_of_the_wrong_type_are_named(
    fields: dict[str, Any], sentence: str, tiny: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = changed_copy(tiny("llama"), tmp_path / "m", **fields)
    with pytest.raises(StartupError, match=sentence):
        read_config(folder / "config.json")


def test_sizes_of_a_gguf_file_that_do_not_fit_name_the_file(tmp_path: Path) -> None:
    family = FAMILIES["llama"]
    path = write_gguf(tmp_path / "tiny.gguf", family.model(seed=7), "llama", changes={"llama.embedding_length": 65})
    with pytest.raises(StartupError, match=r"^The GGUF file .*tiny\.gguf cannot be served: "):
        open_checkpoint(ModelFiles("tiny", str(tmp_path), path.name))
