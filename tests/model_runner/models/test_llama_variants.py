"""Unusual checkpoints of the Llama family are loaded as transformers loads them, or refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from ebbtide.errors import StartupError
from ebbtide.messages import SamplingParams
from ebbtide.model_runner.models.llama_fields import READ_BY, refuse_unread_fields

from ..changed_checkpoints import WEIGHTS, change_json, change_tensors, changed_copy
from ..driver import Driver, load_runner
from ..reference import greedy, load_reference

GREEDY = SamplingParams(max_tokens=20, temperature=0)
PROMPT = [(7 * i) % 500 + 3 for i in range(60)]  # longer than the window of 24
HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"


def ours(folder: Path) -> list[int]:
    [tokens] = Driver(load_runner(folder)).generate([PROMPT], GREEDY)
    return tokens


def assert_equals_transformers(folder: Path) -> None:
    # Without its cache, which is limited to the configuration's window even if the model has none.
    assert ours(folder) == greedy(load_reference(folder), PROMPT, 20, cache=False)


def own_head(tensors: dict[str, Tensor]) -> None:
    tensors[HEAD] = torch.randn(tensors[EMBEDDING].shape, generator=torch.Generator().manual_seed(1)) * 0.3


def head_only(tensors: dict[str, Tensor]) -> None:
    tensors[HEAD] = tensors.pop(EMBEDDING)


@pytest.mark.parametrize("change", [own_head, head_only])
@pytest.mark.parametrize("family", ["qwen2", "gemma2"])
def test_a_tied_model_uses_the_weights_that_are_stored(
    family: str, change: Callable[[dict[str, Tensor]], None], tiny: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = changed_copy(tiny(family), tmp_path / "m", tie_word_embeddings=True)
    change_tensors(folder, change)
    assert_equals_transformers(folder)


def test_the_single_file_wins_over_a_stale_index(tiny: Callable[[str], Path], tmp_path: Path) -> None:
    folder = changed_copy(tiny("llama"), tmp_path / "m")
    index = {"weight_map": {EMBEDDING: "model-00001-of-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert ours(folder) == ours(tiny("llama"))


@pytest.mark.parametrize(
    ("family", "fields"),
    [
        ("llama", {"sliding_window": 24}),
        ("llama", {"sliding_window": 24, "use_sliding_window": True, "layer_types": ["sliding_attention"] * 3}),
        ("mistral", {"attention_bias": True, "mlp_bias": True}),
        ("qwen2", {"attention_bias": True, "sliding_window": 24, "use_sliding_window": False}),
        ("qwen2", {"sliding_window": 24, "use_sliding_window": True, "max_window_layers": 1}),
        ("qwen3", {"sliding_window": 24, "use_sliding_window": True, "max_window_layers": 0, "mlp_bias": True}),
    ],
)
def test_fields_have_the_effect_that_they_have_in_transformers(
    family: str, fields: dict[str, Any], tiny: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = changed_copy(tiny(family), tmp_path / "m", **fields)
    if "max_window_layers" in fields:
        change_json(folder / "config.json", layer_types=None)
    assert_equals_transformers(folder)


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"final_logit_softcapping": 30.0}, "final_logit_softcapping"),
        ({"attention_multiplier": 0.5}, "attention_multiplier"),
        ({"rope_interleaved": True}, "rope_interleaved"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}}, "partial_"),
        ({"is_causal": False}, "is_causal"),
        ({"use_bidirectional_attention": True}, "use_bidirectional_attention"),
        ({"attention_chunk_size": 8}, "attention_chunk_size"),
        ({"clip_qkv": 8.0}, "clip_qkv"),
        ({"position_embedding_type": "alibi"}, "position_embedding_type"),
    ],
)
def test_a_field_that_changes_the_results_and_is_not_read_is_refused(
    fields: dict[str, Any], name: str, tiny: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = changed_copy(tiny("llama"), tmp_path / "m", **fields)
    with pytest.raises(StartupError, match=rf"The field \S*{name}\S* in .*config\.json is ") as refusal:
        load_runner(folder)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("family", READ_BY)
def test_the_defaults_of_transformers_are_not_refused(family: str) -> None:
    config = transformers.AutoConfig.for_model(family)
    for fields in (config.to_dict(), config.to_diff_dict(), json.loads(config.to_json_string(use_diff=False))):
        refuse_unread_fields(fields, family, "config.json")


@pytest.mark.parametrize("family", READ_BY)
def test_metadata_is_not_refused(family: str) -> None:
    metadata = {
        "_name_or_path": "x/y",
        "architectures": ["LlamaForCausalLM"],
        "is_llama_config": True,
        "rope_interleaved": False,
        "transformers.js_config": {"kv_cache_dtype": {"fp16": "float16"}},
        "transformers_version": "4.42.3",
        "torch_dtype": "bfloat16",
        "pretraining_tp": 4,
        "unsloth_version": "2024.9",
        "attention_dropout": 0.1,
        "hidden_dropout": 0.1,
        "use_cache": False,
        "quantization_config": None,
        "model_max_length": 131072,
        "n_positions": 4096,
        "initializer_range": 0.01,
        "my_note": {"scaled": "no"},
        "output_router_logits": False,
        "auto_map": {"AutoConfig": "x.Y"},
        "tokenizer_class": "LlamaTokenizer",
        "embedding_multiplier": 1.0,
        "attn_logit_softcapping": None,
        "temperature": 0.7,
        "do_sample": True,
    }
    refuse_unread_fields(metadata, family, "config.json")


QUANTIZATIONS: list[tuple[dict[str, Any], str]] = [
    ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "fp8"),
    ({"quant_method": "gptq", "bits": 4}, "gptq"),
    ({"quant_method": "awq", "bits": 4}, "awq"),
    ({"load_in_4bit": True}, "bitsandbytes"),
    ({"bits": 4}, "unknown method"),
]


@pytest.mark.parametrize("family", ["llama", "phi3"])
@pytest.mark.parametrize(("settings", "method"), QUANTIZATIONS)
def test_quantized_weights_are_refused_with_their_method(
    family: str, settings: dict[str, Any], method: str, tiny: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = changed_copy(tiny(family), tmp_path / "m", quantization_config=settings)
    with pytest.raises(StartupError, match=rf"its weights are quantized \({method}\)\.$"):
        load_runner(folder)


def as_fp8(tensors: dict[str, Tensor]) -> None:
    name = "model.layers.0.mlp.down_proj.weight"
    tensors[name] = tensors[name].to(torch.float8_e4m3fn)


def as_gptq(tensors: dict[str, Tensor]) -> None:
    tensors.pop("model.layers.0.mlp.down_proj.weight")
    tensors["model.layers.0.mlp.down_proj.qweight"] = torch.zeros(4, 4, dtype=torch.int32)


def as_int8(tensors: dict[str, Tensor]) -> None:
    name = "model.layers.0.mlp.down_proj.weight"
    tensors[name] = tensors[name].to(torch.int8)


@pytest.mark.parametrize("family", ["llama", "phi3"])
@pytest.mark.parametrize(
    ("change", "side_file", "method"),
    [(as_fp8, None, "fp8"), (as_gptq, "quantize_config.json", "gptq"), (as_int8, None, "stored as I8")],
)
def test_quantized_weights_are_refused_without_a_field_that_says_so(
    family: str,
    change: Callable[[dict[str, Tensor]], None],
    side_file: str | None,
    method: str,
    tiny: Callable[[str], Path],
    tmp_path: Path,
) -> None:
    folder = changed_copy(tiny(family), tmp_path / "m")
    change_tensors(folder, change)
    if side_file is not None:
        (folder / side_file).write_text("{}")
    with pytest.raises(StartupError, match=rf"its weights are quantized \({method}\)\.$"):
        load_runner(folder)


def test_a_wrong_number_of_layers_is_refused_before_they_are_made(tiny: Callable[[str], Path], tmp_path: Path) -> None:
    for family in ("llama", "phi3"):
        folder = changed_copy(tiny(family), tmp_path / family, num_hidden_layers=2_000_000_000)
        with pytest.raises(StartupError, match=r"too few for the 2000000000 layers \(num_hidden_layers\)"):
            load_runner(folder)


def test_sizes_are_compared_before_memory_is_allocated(tiny: Callable[[str], Path], tmp_path: Path) -> None:
    folder = changed_copy(tiny("llama"), tmp_path / "m", vocab_size=2_000_000_000)
    with pytest.raises(StartupError, match=r"lm_head\.weight has shape|embed_tokens\.weight has shape"):
        load_runner(folder)


def test_a_folder_without_weights_is_named(tiny: Callable[[str], Path], tmp_path: Path) -> None:
    folder = Path(shutil.copytree(tiny("llama"), tmp_path / "m"))
    (folder / WEIGHTS).unlink()
    with pytest.raises(StartupError, match=r"model\.safetensors does not exist"):
        load_runner(folder)
