"""Weights on disk equal those that transformers reads from the same files."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, PreTrainedModel

from ebbtide.errors import StartupError
from ebbtide.model_runner.checkpoint.weight_loading import fill
from ebbtide.model_runner.checkpoint.weights import open_checkpoint
from ebbtide.model_runner.models.llama_config import LlamaConfig
from ebbtide.tokenization.model_files import ModelFiles

from ..checkpoints import write_checkpoint
from ..reference import load_reference


def files_of(path: Path) -> ModelFiles:
    return ModelFiles(path.name, str(path))


def test_gguf_tensors_are_those_of_transformers(smollm2: Path, smollm2_reference: PreTrainedModel) -> None:
    state = smollm2_reference.state_dict()
    checkpoint = open_checkpoint(ModelFiles("smollm2", str(smollm2.parent), smollm2.name))
    names = set()
    for name, tensor in checkpoint.tensors(state):
        assert torch.equal(tensor, state[name]), name
        names.add(name)
    assert names == set(state) - {"lm_head.weight"}


def test_a_gguf_configuration_is_that_of_transformers(smollm2: Path) -> None:
    config = open_checkpoint(ModelFiles("smollm2", str(smollm2.parent), smollm2.name)).config
    truth = AutoConfig.from_pretrained(smollm2.parent, gguf_file=smollm2.name)
    assert LlamaConfig.read(config) == LlamaConfig.read(truth)
    assert config.rope_parameters == truth.rope_parameters
    assert (config.max_position_embeddings, config.eos_token_id) == (8192, 2)


def test_sharded_checkpoints_are_read_whole(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, "llama", sharded=True)
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    tensors = dict(open_checkpoint(files_of(tmp_path)).tensors(()))
    state = load_reference(tmp_path).state_dict()
    assert tensors.keys() == state.keys()
    assert all(torch.equal(tensors[name], state[name]) for name in tensors)


def test_architecture_dtype_and_eos_come_from_the_files(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, "qwen3")
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 2]}))
    checkpoint = open_checkpoint(files_of(tmp_path))
    assert checkpoint.architecture == "Qwen3ForCausalLM"
    assert checkpoint.stored_dtype == torch.float32
    assert checkpoint.eos_token_ids == (2, 7)


def test_reading_reports_its_progress(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, "qwen3")
    seen: list[tuple[str, float | None]] = []
    checkpoint = replace(
        open_checkpoint(files_of(tmp_path)), progress=lambda text, share=None: seen.append((text, share))
    )
    assert dict(checkpoint.tensors(()))
    shares = [share for _, share in seen if share is not None]
    assert {text for text, _ in seen} == {"Reading the weights (Qwen3ForCausalLM)"}
    assert shares == sorted(shares)
    assert len(shares) > 5
    assert shares[-1] > 0.98


def test_an_end_of_text_id_outside_the_vocabulary_is_ignored_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_checkpoint(tmp_path, "qwen3")
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 151645, 2]}))
    checkpoint = open_checkpoint(files_of(tmp_path))
    assert checkpoint.eos_ids_of(151646) == (2, 7, 151645)
    assert not caplog.records
    assert checkpoint.eos_ids_of(100) == (2, 7)
    assert "the end-of-text ids [151645] are ignored, because the model has only 100 tokens" in caplog.text


@pytest.mark.parametrize("damage", ["missing", "truncated"])
def test_damaged_files_are_named(tmp_path: Path, damage: str) -> None:
    write_checkpoint(tmp_path, "llama")
    path = tmp_path / "model.safetensors"
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(StartupError, match=r"model\.safetensors"):
        list(open_checkpoint(files_of(tmp_path)).tensors(()))


def test_a_file_that_is_not_gguf_is_named(tmp_path: Path) -> None:
    (tmp_path / "x.gguf").write_bytes(b"not a model" * 100)
    with pytest.raises(StartupError, match=r"x\.gguf|x cannot be read"):
        open_checkpoint(ModelFiles("x", str(tmp_path), "x.gguf"))


@pytest.mark.parametrize(
    ("stored", "sentence"),
    [
        ({"a": torch.ones(2)}, "lack 1 tensors, b among them"),
        ({"a": torch.ones(2), "b": torch.ones(3), "c": torch.ones(1)}, "contain the tensor c"),
        ({"a": torch.ones(3), "b": torch.ones(3)}, r"a has shape \[3\] and should have \[2\]"),
    ],
)
def test_weights_that_do_not_fit_are_refused(stored: dict[str, torch.Tensor], sentence: str) -> None:
    with pytest.raises(StartupError, match=sentence):
        fill({"a": torch.empty(2), "b": torch.empty(3)}, stored.items(), name="tiny")


def test_a_stored_head_of_a_tied_model_is_ignored(tiny: Callable[[str], Path], tmp_path: Path) -> None:
    from ..driver import load_runner

    write_checkpoint(tmp_path, "qwen2")
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    save_file(tensors, path, metadata={"format": "pt"})
    assert load_runner(tmp_path).info.vocab_size == 512
