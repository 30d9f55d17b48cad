"""Configurations read without transformers: equal to its own, and left to transformers if anything is unusual."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from ebbtide.model_runner.checkpoint.config_file import read_config
from ebbtide.model_runner.checkpoint.native_config import FAMILIES, KNOWN, read_native
from ebbtide.model_runner.context import longest_context
from ebbtide.model_runner.layers.rotary import Rotary
from ebbtide.model_runner.models.llama_config import LlamaConfig
from ebbtide.model_runner.models.llama_fields import READ, READ_BY

LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
YARN = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}
FACTORS = [1.0 + index / 10 for index in range(16)]
LONGROPE = {"rope_type": "longrope", "short_factor": FACTORS, "long_factor": FACTORS}
ROPES: list[dict[str, Any]] = [
    {},
    {"rope_theta": 5e5},
    {"rope_scaling": None, "rope_theta": 1000000},
    {"rope_scaling": {"rope_type": "linear", "factor": 2}},
    {"rope_parameters": {"rope_type": "default", "rope_theta": 1e5}, "rope_scaling": {}},
    {"rope_scaling": {**LLAMA3, "original_max_position_embeddings": 256}, "rope_theta": 5e5},
    {"rope_scaling": LLAMA3},
    {"rope_scaling": LLAMA3, "original_max_position_embeddings": 128},
    {"rope_scaling": YARN},
    {"rope_scaling": {**YARN, "beta_fast": 4, "beta_slow": 0.5, "truncate": False, "attention_factor": 1.5}},
    {"rope_scaling": {**YARN, "mscale": 0.7, "mscale_all_dim": 1.3}},
    {"rope_scaling": {**YARN, "mscale": 0.7, "factor": 0.5}},
    {"rope_parameters": {**LONGROPE, "attention_factor": 1.0, "factor": 1.0, "original_max_position_embeddings": 512}},
    {"rope_parameters": {**LONGROPE, "original_max_position_embeddings": 64}},
]
SIZES = {
    "hidden_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 6,
    "max_position_embeddings": 1024,
}
OTHERS: list[dict[str, Any]] = [
    {},
    SIZES,
    SIZES
    | {"head_dim": 48, "num_key_value_heads": 2, "dtype": "bfloat16", "eos_token_id": [3, 4], "unknown": {"a": 1}},
    SIZES | {"torch_dtype": "float16", "tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True},
    SIZES | {"sliding_window": 32, "use_sliding_window": True, "max_window_layers": 3},
    SIZES | {"sliding_window": None, "use_sliding_window": True, "bos_token_id": None},
    SIZES | {"use_sliding_window": True, "layer_types": ["full_attention", "sliding_attention"] * 3},
]
# Each of these is valid or not, but not plain.
UNUSUAL: list[dict[str, Any]] = [
    {"hidden_size": "64"},
    {"num_hidden_layers": 0},
    {"hidden_size": None},
    {"rms_norm_eps": 0},
    {"initializer_range": float("inf")},
    {"unknown": float("nan")},
    {"dtype": "float64"},
    {"partial_rotary_factor": 0.5},
    {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}},
    {"rope_scaling": {"rope_type": "linear"}},
    {"rope_scaling": {"rope_type": "linear", "factor": None}},
    {"rope_parameters": {"full_attention": {"rope_type": "default"}}},
    {"architectures": ["LlamaForSequenceClassification"]},
    {"quantization_config": {"quant_method": "gptq"}},
    {"text_config": {}},
    {"per_layer_config": {}},
    {"head_dim": 33},
    {"eos_token_id": "2"},
    {"layer_types": ["chunked_attention"] * 32, "model_type": "qwen2"},
    {"layer_types": ["full_attention"], "model_type": "qwen3"},
    {"layer_types": ["full_attention"] * 32, "model_type": "mistral"},
    {"model_type": "gemma2"},
    {"model_type": None},
]


def _both(path: Path, fields: dict[str, Any]) -> tuple[Any, Any]:
    path.write_text(json.dumps(fields))
    return read_native(json.loads(path.read_text())), read_config(path)


@pytest.mark.parametrize("kind", FAMILIES)
def test_plain_configurations_equal_those_of_transformers(kind: str, tmp_path: Path) -> None:
    used = sorted((READ | READ_BY[kind] | {"dtype", "architectures"}) - {"rope_theta", "rope_scaling", "model_type"})
    for other in OTHERS:
        for rope in ROPES:
            if kind == "mistral" and "layer_types" in other:
                continue
            native, reference = _both(tmp_path / "config.json", {"model_type": kind, **other, **rope})
            assert native is not None, (other, rope)
            for name in used:
                if name != "original_max_position_embeddings":
                    assert getattr(native, name, None) == getattr(reference, name, None), (name, other, rope)
            assert LlamaConfig.read(native) == LlamaConfig.read(reference)
            assert longest_context(native) == longest_context(reference)


@pytest.mark.parametrize("rope", ROPES)
def test_rotary_frequencies_equal_those_of_transformers_bit_for_bit(rope: dict[str, Any], tmp_path: Path) -> None:
    native, reference = _both(tmp_path / "config.json", {"model_type": "llama", **SIZES, **rope})
    rotary = Rotary.from_config(native, 32, dtype=torch.float32, device=torch.device("cpu"))
    kind = reference.rope_parameters["rope_type"]
    if kind == "default":
        expected, scaling = 1.0 / reference.rope_parameters["rope_theta"] ** (torch.arange(0, 32, 2).float() / 32), 1.0
    else:
        expected, scaling = ROPE_INIT_FUNCTIONS[kind](reference)
    positions = torch.tensor([0, 1, 77, 1000])
    angles = positions.float()[:, None] * expected
    cos, sin = rotary.table(positions)
    assert torch.equal(cos[:, 0, :16], angles.cos() * scaling)
    assert torch.equal(sin[:, 0, 16:], angles.sin() * scaling)


@pytest.mark.parametrize("fields", UNUSUAL)
def test_anything_unusual_is_left_to_transformers(fields: dict[str, Any]) -> None:
    assert read_native({"model_type": "llama"}) is not None
    assert read_native({"model_type": "llama"} | fields) is None


@pytest.mark.parametrize("kind", FAMILIES)
def test_every_field_of_transformers_class_is_known(kind: str) -> None:
    """A field of which this module does not know the type could be refused by transformers and accepted here."""
    ignored = {"transformers_version", "output_hidden_states", "return_dict", "chunk_size_feed_forward"}
    ignored |= {"is_encoder_decoder", "id2label", "label2id", "problem_type"}
    assert {field.name for field in dataclasses.fields(CONFIG_MAPPING[kind])} - ignored <= KNOWN
