"""config.json, generation_config.json and the index: equivalent types load, other errors give one sentence."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from ebbtide.errors import StartupError
from ebbtide.model_runner.checkpoint.config_file import read_config
from ebbtide.model_runner.checkpoint.weights import open_checkpoint
from ebbtide.tokenization.model_files import ModelFiles
from ebbtide.tokenization.tokenizer import load_tokenizer

from ..changed_checkpoints import change_json, changed_copy
from ..driver import load_runner

NATIVE_TYPES = ("llama", "mistral", "qwen2", "qwen3")
BAD_VALUES: list[Any] = [[], {}, "x", "12", -1, 0, 1.5, float("inf"), float("nan"), None, True, 2**70, ["x"], {"a": 1}]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"max_position_embeddings": 512.0}, {"max_position_embeddings": 512}),
        ({"hidden_size": 64.0, "num_hidden_layers": 3.0}, {"hidden_size": 64, "num_hidden_layers": 3}),
        ({"attention_bias": None, "use_cache": None}, {"attention_bias": False}),
        ({"attention_bias": 0, "tie_word_embeddings": 0}, {"attention_bias": False, "tie_word_embeddings": False}),
        ({"rms_norm_eps": 1}, {"rms_norm_eps": 1.0}),
        ({"dtype": "auto"}, {"dtype": None}),
        ({"dtype": None, "torch_dtype": "fp16"}, {"dtype": torch.float16}),
        ({"dtype": "torch.bfloat16"}, {"dtype": torch.bfloat16}),
        ({"architectures": "LlamaForCausalLM"}, {"architectures": ["LlamaForCausalLM"]}),
        ({"eos_token_id": [2.0, 3]}, {"eos_token_id": [2, 3]}),
        ({"id2label": {"x": "y"}, "problem_type": "none", "num_labels": "two"}, {}),
        ({"initializer_range": {"__float__": "Infinity"}, "model_type": "qwen2"}, {"initializer_range": float("inf")}),
    ],
)
def test_types_that_mean_the_same_are_read(
    fields: dict[str, Any], expected: dict[str, Any], tiny: Callable[[str], Path], tmp_path: Path
) -> None:
    config = read_config(changed_copy(tiny("llama"), tmp_path / "m", **fields) / "config.json")
    assert {name: getattr(config, name) for name in expected} == expected


def test_whole_numbers_written_as_fractions_load(tiny: Callable[[str], Path], tmp_path: Path) -> None:
    rope = {"rope_type": "llama3", "rope_theta": 10000, "factor": 8, "original_max_position_embeddings": 64.0}
    rope |= {"low_freq_factor": 1, "high_freq_factor": 4}
    sizes = {"max_position_embeddings": 512.0, "vocab_size": 512.0, "num_key_value_heads": 2.0}
    folder = changed_copy(tiny("llama"), tmp_path / "m", rope_parameters=rope, **sizes)
    change_json(folder / "generation_config.json", eos_token_id=[2.0, 7])
    info = load_runner(folder).info
    assert (info.context_length, info.eos_token_ids) == (512, (2, 7))


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        (
            {"num_attention_heads": 0},
            "The field num_attention_heads in .* is '0', which is not a positive whole number",
        ),
        ({"hidden_size": "wide"}, "The field hidden_size in .* is 'wide', which is not a positive whole number"),
        ({"vocab_size": 2**70}, "The field vocab_size in "),
        ({"num_attention_heads": 3}, "not a multiple of the number of attention heads"),
        ({"num_key_value_heads": 3}, r"not a multiple of its 3 key-value heads \(num_key_value_heads\)"),
        ({"rms_norm_eps": "small"}, r"field 'rms_norm_eps'"),
        ({"num_key_value_heads": [1, 2, 1]}, r"field 'num_key_value_heads'"),
        ({"dtype": "float9"}, "The field dtype in .* is 'float9', which is not an element type"),
        ({"dtype": 16}, "The field dtype in .* is 16, which is not an element type"),
        ({"model_type": "wonder"}, "The model_type 'wonder' in .* is unknown to the installed transformers library"),
        ({"model_type": None}, "has no model_type"),
        ({"eos_token_id": "2"}, "eos_token_id"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4}}, "factor"),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": "1e4"}}, r"rope_parameters\.rope_theta in "),
        ({"rope_scaling": {"type": "linear", "factor": "2"}}, r"rope_scaling\.factor in "),
        ({"rms_norm_eps": 0}, "The field rms_norm_eps in .* is '0.0', which is not a positive number"),
        ({"rms_norm_eps": -1e-5}, "The field rms_norm_eps in .* is '-1e-05', which is not a positive number"),
        ({"rms_norm_eps": float("nan")}, "The field rms_norm_eps in .* is 'nan', which is not a positive number"),
        ({"rms_norm_eps": {"__float__": "Infinity"}}, "The field rms_norm_eps in .* is 'inf'"),
        ({"rope_theta": 0}, "The field rope_theta in .* is '0', which is not a positive number"),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": -1e4}}, r"rope_parameters\.rope_theta in "),
        ({"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 0}}, r"rope_parameters\.factor in "),
        (
            {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 2, "beta_slow": 0}},
            r"\.beta_slow in ",
        ),
        ({"rope_parameters": {"rope_type": "longrope", "short_factor": [1, -1]}}, r"rope_parameters\.short_factor in "),
        ({"rope_parameters": {"rope_type": "longrope", "long_factor": ["x"]}}, r"rope_parameters\.long_factor in "),
        ({"rope_parameters": {"rope_type": "default", "mscale": -1}}, r"rope_parameters\.mscale in "),
        ({"sliding_window": float("inf")}, "The field sliding_window in .* is 'inf', which is not a finite number"),
        ({"model_type": "mistral", "sliding_window": -4}, "The field sliding_window in .* is '-4'"),
        ({"eos_token_id": [float("nan")]}, "The field eos_token_id in .* is 'nan', which is not a finite number"),
        ({"num_key_value_heads": -2}, "The field num_key_value_heads in .* is '-2'"),
    ],
)
def test_an_unusable_field_is_named_with_its_file(
    fields: dict[str, Any], sentence: str, tiny: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = changed_copy(tiny("llama"), tmp_path / "m", **fields)
    with pytest.raises(StartupError, match=sentence) as refusal:
        load_runner(folder)
    assert "\n" not in str(refusal.value)
    assert "config.json" in str(refusal.value) or "configuration of a llama model" in str(refusal.value)


@pytest.mark.parametrize("content", ["[1, 2]", '"x"', "{", "", '{"model_type": "llama"', "\x00", "[" * 100_000, "nan"])
def test_a_damaged_configuration_is_not_reported_as_the_tokenizer(content: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(content)
    for start in (open_checkpoint, load_tokenizer):
        with pytest.raises(
            StartupError, match=r"The file .*config\.json (must contain|cannot be read as JSON)"
        ) as refusal:
            start(ModelFiles("m", str(tmp_path)))
        assert "tokenizer" not in str(refusal.value).replace(str(tmp_path), "")


def test_the_tokenizer_does_not_depend_on_the_fields_of_the_configuration(
    tiny: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = changed_copy(tiny("llama"), tmp_path / "m", num_attention_heads=0, vocab_size="many", dtype="float9")
    assert load_tokenizer(ModelFiles("m", str(folder))).vocab_size > 400


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("generation_config.json", "{", r"generation_config\.json cannot be read as JSON"),
        ("generation_config.json", "[]", r"generation_config\.json must contain a JSON object"),
        ("generation_config.json", '{"eos_token_id": "2"}', r"The field eos_token_id in .*generation_config\.json"),
        ("generation_config.json", '{"eos_token_id": 1.5}', r"The field eos_token_id in .*generation_config\.json"),
        ("generation_config.json", '{"eos_token_id": [9223372036854775808]}', r"The field eos_token_id in "),
        ("model.safetensors.index.json", '{"weight_map": {"a": ', r"index\.json cannot be read as JSON"),
        ("model.safetensors.index.json", '{"weight_map": []}', r"The field weight_map in .*index\.json"),
        ("model.safetensors.index.json", '{"weight_map": {"a": "../x"}}', r"The field weight_map in .*index\.json"),
        ("model.safetensors.index.json", '{"weight_map": {"a": "x"}}', r"/x does not exist"),
    ],
)
def test_other_damaged_files_are_named(
    name: str, content: str, sentence: str, tiny: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = changed_copy(tiny("llama"), tmp_path / "m")
    if "index" in name:
        (folder / "model.safetensors").unlink()
    (folder / name).write_text(content)
    with pytest.raises(StartupError, match=sentence):
        load_runner(folder)


def _refusal(folder: Path) -> str:
    """Return the sentence with which the configuration is refused; the file's name if it is accepted."""
    try:
        open_checkpoint(ModelFiles("m", str(folder)))
    except StartupError as error:
        return str(error)
    return "config.json"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("model_type", NATIVE_TYPES)
def test_every_field_with_every_wrong_value_is_read_or_one_sentence(model_type: str, tmp_path: Path) -> None:
    """Reading a configuration raises no other exception, and a refusal names the file."""
    path = tmp_path / "config.json"
    for field in dataclasses.fields(CONFIG_MAPPING[model_type]):
        for value in BAD_VALUES:
            path.write_text(json.dumps({"model_type": model_type, field.name: value}))
            refusal = _refusal(tmp_path)
            assert "config.json" in refusal, (field.name, value)
            assert "\n" not in refusal


@pytest.mark.parametrize("model_type", [*NATIVE_TYPES, "gemma2", "gemma3", "phi3", "gpt2", "gpt_neox", "olmo2"])
def test_a_configuration_that_transformers_wrote_is_read_unchanged(model_type: str, tmp_path: Path) -> None:
    config = CONFIG_MAPPING[model_type](dtype="bfloat16")
    config.save_pretrained(tmp_path)
    expected = type(config).from_pretrained(tmp_path).to_dict() | {"_name_or_path": str(tmp_path)}
    assert read_config(tmp_path / "config.json").to_dict() == expected
