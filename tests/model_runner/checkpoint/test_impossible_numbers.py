"""Numbers of a model's files that would be divided by, or whose logarithm is taken: refused in one sentence."""

from __future__ import annotations

import dataclasses
import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save
from transformers import PreTrainedModel

from ebbtide.errors import StartupError
from ebbtide.model_runner.checkpoint.config_file import read_config
from ebbtide.model_runner.checkpoint.gguf_architectures import ARCHITECTURES
from ebbtide.model_runner.checkpoint.weights import open_checkpoint
from ebbtide.tokenization.gguf_header import read_header
from ebbtide.tokenization.model_files import ModelFiles

from ..changed_checkpoints import changed_copy
from ..driver import load_runner
from ..families import FAMILIES
from ..gguf_files import write_gguf

# Fields with fractions that may be 0 or negative: factors, bounds, and values for training only.
MULTIPLIERS = {"attention_multiplier", "embedding_multiplier", "residual_multiplier", "logit_scale", "clip_qkv"}
MULTIPLIERS |= {"lm_head_multiplier", "key_multiplier", "attention_in_multiplier", "attention_out_multiplier"}
MULTIPLIERS |= {"ssm_in_multiplier", "ssm_out_multiplier", "ssm_multipliers", "mlp_multipliers", "time_step_limit"}
TRAINING = {"initializer_range", "router_aux_loss_coef", "router_jitter_noise"}
LLAMA3 = {"rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0, "original_max_position_embeddings": 64}
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 2.0, "original_max_position_embeddings": 64}


@pytest.fixture(scope="module")
def llama() -> PreTrainedModel:
    return FAMILIES["llama"].model(seed=7)


def opened(path: Path) -> None:
    open_checkpoint(ModelFiles("tiny", str(path.parent), path.name))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [name for name, family in FAMILIES.items() if not family.refusal])
def test_every_fraction_of_a_configuration_is_a_factor_or_must_be_positive(name: str, tmp_path: Path) -> None:
    """Walks the fields of the family's class; a field with a new name must be put on one of the lists."""
    config = FAMILIES[name].config()
    path = tmp_path / "config.json"
    for field in dataclasses.fields(type(config)):
        if "float" not in str(field.type) or field.name in MULTIPLIERS | TRAINING:
            continue
        if "dropout" in field.name or "pdrop" in field.name or field.name.startswith("swiglu"):
            continue
        for value in (0.0, -1.0):
            path.write_text(json.dumps(config.to_diff_dict() | {field.name: value, "model_type": config.model_type}))
            with pytest.raises(StartupError, match=rf"The field {field.name} in .* is '{value}', which is not a pos"):
                read_config(path)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("rope", "sentence"),
    [
        (LLAMA3 | {"low_freq_factor": 4.0, "high_freq_factor": 4.0}, "low_freq_factor of 4, .* high_freq_factor of 4"),
        (LLAMA3 | {"low_freq_factor": 8.0, "high_freq_factor": 4.0}, "low_freq_factor of 8, .* high_freq_factor of 4"),
        (YARN | {"rope_theta": 1.0}, "rotary frequencies are not finite .*rope_theta 1.0"),
        (YARN | {"beta_fast": 1e-320, "beta_slow": 1e-321}, "rotary frequencies are not finite"),
        (
            {"rope_type": "longrope", "rope_theta": 1e4, "factor": 2.0, "original_max_position_embeddings": 1}
            | {"short_factor": [1.0] * 8, "long_factor": [1.0] * 8},
            "rotary frequencies are not finite .*original_max_position_embeddings 1",
        ),
    ],
)
def test_rotary_numbers_that_only_together_are_impossible(
    rope: dict[str, Any], sentence: str, tiny: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = changed_copy(tiny("llama"), tmp_path / "m", rope_parameters=rope)
    with pytest.raises(StartupError, match=sentence) as refusal:
        load_runner(folder)
    assert "config.json" in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("name", ["rope_freqs.weight", "rope_factors_short.weight", "rope_factors_long.weight"])
@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_impossible_frequency_factors_are_refused(
    name: str, value: float, llama: PreTrainedModel, tmp_path: Path
) -> None:
    factors = torch.ones(8)
    factors[3] = value
    path = write_gguf(tmp_path / "tiny.gguf", llama, "llama", extra_tensors={name: factors})
    with pytest.raises(StartupError, match=rf"its tensor {name} contains {value:g}, which is not a positive number\.$"):
        opened(path)


def test_a_wrong_number_of_frequency_factors_is_refused(llama: PreTrainedModel, tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "tiny.gguf", llama, "llama", extra_tensors={"rope_freqs.weight": torch.ones(7)})
    with pytest.raises(StartupError, match=r"dimension_count is 16, but the tensor rope_freqs\.weight has 7 elements"):
        opened(path)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_divisors_in_metadata_are_refused(architecture: str, tmp_path: Path) -> None:
    """Walks the keys of the architecture whose values are fractions; factors of a product may be 0 or negative."""
    family = next(family for family in FAMILIES.values() if family.gguf == architecture)
    path = write_gguf(tmp_path / "tiny.gguf", family.model(seed=7), architecture)
    data = path.read_bytes()
    may_be_zero = {"attention.scale", "embedding_scale", "residual_scale", "attention.clamp_kqv"}
    may_be_zero |= set() if architecture.startswith("granite") else {"logit_scale"}
    for key in [key for key, value in read_header(path).metadata.items() if isinstance(value, float)]:
        is_factor = key.removeprefix(f"{architecture}.") in may_be_zero
        at = data.index(key.encode()) + len(key) + 4  # after the number of the type
        for value in (float("nan"), *(() if is_factor else (0.0, -1.0))):
            if key.endswith((".rope.scaling.factor", "gemma3.final_logit_softcapping")) and value == 0:
                continue  # 0 means none
            path.write_bytes(data[:at] + struct.pack("<f", value) + data[at + 4 :])
            with pytest.raises(StartupError, match=rf"key {key} is {value:g} and should be a (positive|finite) number"):
                opened(path)


def test_more_rotated_elements_than_a_head_has_are_refused(tmp_path: Path) -> None:
    model = FAMILIES["phi3"].model(seed=7)
    for value in (18, 15):
        path = write_gguf(tmp_path / "tiny.gguf", model, "phi3", changes={"phi3.rope.dimension_count": value})
        with pytest.raises(StartupError, match=rf"rope\.dimension_count is {value} and should be an even number"):
            opened(path)


def test_two_gguf_tensors_over_the_same_bytes_are_refused(llama: PreTrainedModel, tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "tiny.gguf", llama, "llama")
    data = bytearray(path.read_bytes())
    name = b"blk.0.attn_norm.weight"  # one dimension: a name, 4 + 8 + 4 bytes, then the offset
    at = data.index(name) + len(name) + 16
    data[at : at + 8] = struct.pack("<Q", struct.unpack_from("<Q", data, at)[0] - 32)
    path.write_bytes(data)
    with pytest.raises(StartupError, match=r"is damaged: its tensors .* and .* overlap\.$"):
        opened(path)


@pytest.mark.parametrize("begin", [0, 4, -8])
def test_two_safetensors_over_the_same_bytes_are_refused(
    begin: int, tiny: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = changed_copy(tiny("llama"), tmp_path / "m")
    data = save({"a": torch.ones(2), "b": torch.ones(2)})
    size = struct.unpack_from("<Q", data)[0]
    header = json.loads(data[8 : 8 + size])
    header["b"]["data_offsets"] = [begin, begin + 8]
    text = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data[8 + size :])
    with pytest.raises(StartupError, match=r"The weights file .*model\.safetensors is damaged: .*\.$"):
        load_runner(folder)
