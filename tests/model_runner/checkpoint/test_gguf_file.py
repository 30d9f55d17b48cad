"""GGUF files: quantizations, parts, and metadata that is used, without effect or refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter
from gguf.quants import dequantize, quant_shape_to_byte_shape
from transformers import GenerationConfig, PreTrainedModel

from ebbtide.errors import StartupError
from ebbtide.messages import SamplingParams
from ebbtide.model_runner.checkpoint.gguf_architectures import ARCHITECTURES
from ebbtide.model_runner.checkpoint.gguf_file import GGUFFile
from ebbtide.model_runner.checkpoint.weights import open_checkpoint
from ebbtide.tokenization.model_files import ModelFiles, resolve_model

from ..driver import Driver, load_runner
from ..families import FAMILIES
from ..gguf_files import write_gguf
from ..gguf_kinds import DEQUANTIZED
from ..reference import greedy

PROMPT = [5, 300, 17, 40, 411, 9, 77, 250] * 12  # longer than the original context of scaled rotary embedding


@pytest.fixture(scope="module")
def llama() -> PreTrainedModel:
    return model_of("llama")


def model_of(family: str) -> PreTrainedModel:
    model = FAMILIES[family].model(seed=7)
    model.generation_config = GenerationConfig(pad_token_id=0)
    return model


def continuation(path: Path) -> list[int]:
    [tokens] = Driver(load_runner(path), chunk=64).generate([PROMPT], SamplingParams(max_tokens=8, temperature=0))
    return tokens


def opened(path: Path) -> None:
    open_checkpoint(ModelFiles("tiny", str(path.parent), path.name))


# ---------------------------------------------------------------------- quantizations


@pytest.mark.parametrize("kind", DEQUANTIZED)
def test_a_quantized_tensor_is_dequantized_as_by_the_gguf_package(kind: GGMLQuantizationType, tmp_path: Path) -> None:
    generator = np.random.default_rng(3)
    # Below 0x78, so that every half precision number in a block is finite.
    blocks = generator.integers(0, 0x78, quant_shape_to_byte_shape((512, 256), kind), np.uint8)
    writer = GGUFWriter(tmp_path / "tiny.gguf", "qwen2")
    for name in ("embedding_length", "block_count", "context_length", "feed_forward_length", "attention.head_count"):
        writer.add_uint32(f"qwen2.{name}", 256)
    writer.add_float32("qwen2.attention.layer_norm_rms_epsilon", 1e-5)
    writer.add_tensor("blk.0.attn_norm.weight", np.ones(7, np.float32))
    writer.add_tensor("token_embd.weight", blocks, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    read = dict(GGUFFile(tmp_path, "tiny.gguf").tensors(["model.embed_tokens.weight"]))
    truth = torch.from_numpy(dequantize(blocks, kind))
    assert torch.equal(read["model.embed_tokens.weight"], truth)


@pytest.mark.parametrize("kind", ["F16", "Q8_0", "Q4_1"])
def test_a_quantized_model_is_one_with_dequantized_weights(kind: str, llama: PreTrainedModel, tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "tiny.gguf", llama, "llama", kind=GGMLQuantizationType[kind])
    reader = GGUFReader(path)
    dequantized = {one.name: torch.tensor(dequantize(one.data, one.tensor_type)) for one in reader.tensors}
    exact = write_gguf(tmp_path / "exact.gguf", llama, "llama", extra_tensors=dequantized)
    assert continuation(path) == continuation(exact)


# ---------------------------------------------------------------------- parts


def test_a_split_file_loads_whatever_part_is_named(llama: PreTrainedModel, tmp_path: Path) -> None:
    first = write_gguf(tmp_path / "tiny.gguf", llama, "llama", parts_of=9)
    parts = sorted(tmp_path.glob("tiny-*.gguf"))
    assert len(parts) == 4
    files = [resolve_model(str(part)) for part in parts]
    assert set(files) == {ModelFiles("tiny", str(tmp_path), first.name)}
    assert continuation(first) == greedy(llama, PROMPT, 8)


def test_a_missing_part_is_named(llama: PreTrainedModel, tmp_path: Path) -> None:
    write_gguf(tmp_path / "tiny.gguf", llama, "llama", parts_of=9)
    (tmp_path / "tiny-00003-of-00004.gguf").unlink()
    for part in (1, 2, 4):
        with pytest.raises(StartupError, match=r"4 parts, and the part \S+/tiny-00003-of-00004\.gguf is missing\.$"):
            resolve_model(str(tmp_path / f"tiny-{part:05}-of-00004.gguf"))


def test_a_part_under_another_name_is_refused(llama: PreTrainedModel, tmp_path: Path) -> None:
    first = write_gguf(tmp_path / "tiny.gguf", llama, "llama", parts_of=9)
    first.rename(tmp_path / "renamed.gguf")
    with pytest.raises(
        StartupError, match=r"renamed\.gguf is one of 4 parts, but its name does not end in -00001-of-0"
    ):
        opened(tmp_path / "renamed.gguf")


def test_parts_in_the_wrong_order_are_refused(llama: PreTrainedModel, tmp_path: Path) -> None:
    first = write_gguf(tmp_path / "tiny.gguf", llama, "llama", parts_of=9)
    third = tmp_path / "tiny-00003-of-00004.gguf"
    third.write_bytes((tmp_path / "tiny-00002-of-00004.gguf").read_bytes())
    with pytest.raises(StartupError, match=r"00003-of-00004\.gguf is not part 3 of 4\.$"):
        opened(first)


# ---------------------------------------------------------------------- metadata


@pytest.mark.parametrize(
    ("changes", "family"),
    [
        ({"llama.rope.scale_linear": 8.0}, "llama, RoPE linear"),
        ({"llama.rope.scaling.factor": 8.0}, "llama, RoPE linear"),
        ({"llama.rope.scaling.type": "none", "llama.rope.scaling.factor": 8.0}, "llama"),
        ({"llama.rope.scaling.factor": 0.0}, "llama"),
        ({"llama.rope.freq_base": None}, "llama"),
        ({"llama.rope.dimension_count": None, "llama.attention.key_length": None, "llama.vocab_size": None}, "llama"),
        ({"llama.attention.head_count_kv": [2, 2, 2], "llama.feed_forward_length": [128] * 3}, "llama"),
        ({"llama.rope.scaling.finetuned": True, "llama.tensor_data_layout": "Meta AI original pth"}, "llama"),
        ({"llama.attention.causal": True, "llama.expert_count": 0, "llama.expert_used_count": 0}, "llama"),
        ({"mradermacher.quantize_version": "2", "general.source.url": "x"}, "llama"),
        ({"quantize.imatrix.file": "x", "quantize.imatrix.entries_count": 1}, "llama"),
    ],
)
def test_metadata_has_the_meaning_of_llama_cpp(
    changes: dict[str, Any], family: str, llama: PreTrainedModel, tmp_path: Path
) -> None:
    truth = model_of(family)
    truth.load_state_dict(llama.state_dict())
    assert continuation(write_gguf(tmp_path / "tiny.gguf", llama, "llama", changes=changes)) == greedy(truth, PROMPT, 8)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"llama.rope.scaling.type": "dynamic"}, "key llama.rope.scaling.type is 'dynamic'"),
        (
            {"llama.rope.scaling.type": "longrope"},
            "key llama.rope.scaling.type is 'longrope', but the file has no tens",
        ),
        ({"llama.rope.scaling.attn_factor": 1.5}, "key llama.rope.scaling.attn_factor is 1.5"),
        ({"llama.rope.dimension_count": 8}, "key llama.rope.dimension_count should be 16, the size of a head"),
        ({"llama.attention.head_count_kv": [2, 4, 2]}, r"key llama.attention.head_count_kv differs .* \(2 to 4\)"),
        ({"llama.attention.head_count_kv": ["a", "b"]}, "key llama.attention.head_count_kv is an array of strings"),
        *(
            ({f"llama.{key}": 0}, f"key llama.{key} is 0 and should be a positive number")
            for key in (
                "embedding_length",
                "block_count",
                "context_length",
                "feed_forward_length",
                "attention.head_count",
                "attention.head_count_kv",
                "attention.key_length",
            )
        ),
        *(
            ({f"llama.{key}": value}, f"key llama.{key} is {value:g} and should be a positive number")
            for key in ("attention.layer_norm_rms_epsilon", "rope.freq_base")
            for value in (0.0, -1.0)
        ),
        ({"llama.rope.scaling.factor": -2.0}, "key llama.rope.scaling.factor is -2"),
        ({"llama.rope.freq_base": float("nan")}, "key llama.rope.freq_base is nan and should be a finite number"),
        ({"llama.attention.layer_norm_rms_epsilon": float("inf")}, "epsilon is inf and should be a finite number"),
        ({"llama.attention.value_length": 8}, "key llama.attention.value_length is 8"),
        ({"llama.attention.causal": False}, "key llama.attention.causal is 0"),
        ({"llama.attention.sliding_window": 64}, "key llama.attention.sliding_window is not supported"),
        ({"llama.attn_logit_softcapping": 30.0}, "key llama.attn_logit_softcapping is not supported"),
        ({"llama.context_length": None}, "key llama.context_length is missing"),
        ({"llama.context_length": "long"}, "key llama.context_length is a string and should be a number"),
        ({"llama.block_count": 2.5}, "key llama.block_count is 2.5 and should be an integer"),
        ({"llama.vocab_size": 511}, "key llama.vocab_size is 511"),
        ({"general.architecture": "gpt-oss"}, "general.architecture is 'gpt-oss', and the supported ones are llama, "),
        ({"general.architecture": "falcon"}, "general.architecture is 'falcon'"),
    ],
)
def test_unsupported_metadata_is_refused_in_one_sentence(
    changes: dict[str, Any], sentence: str, llama: PreTrainedModel, tmp_path: Path
) -> None:
    path = write_gguf(tmp_path / "tiny.gguf", llama, "llama", changes=changes)
    with pytest.raises(StartupError, match=rf"^The GGUF file {path} .*{sentence}.*\.$") as refusal:
        opened(path)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_no_architecture_ignores_an_unknown_key(architecture: str, tmp_path: Path) -> None:
    family = next(family for family in FAMILIES.values() if family.gguf == architecture)
    path = write_gguf(
        tmp_path / "tiny.gguf", family.model(seed=7), architecture, changes={f"{architecture}.tide_height": 1.0}
    )
    with pytest.raises(StartupError, match=rf"its key {architecture}\.tide_height is not supported"):
        opened(path)


def test_biases_of_queries_keys_and_values_alone_load(tmp_path: Path) -> None:
    """Such a file has the architecture llama: a conversion of a model that computes what Qwen2 does."""
    qwen2 = model_of("qwen2")
    path = write_gguf(tmp_path / "tiny.gguf", qwen2, "llama")
    assert continuation(path) == greedy(qwen2, PROMPT, 8)


def test_an_unsupported_tensor_is_refused(llama: PreTrainedModel, tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "tiny.gguf", llama, "llama", extra_tensors={"blk.0.attn_sinks.weight": torch.ones(4)})
    with pytest.raises(StartupError, match=r"contain the tensor blk\.0\.attn_sinks\.weight, which does not belong"):
        load_runner(path)


def test_a_wrong_number_of_layers_is_refused_before_they_are_made(llama: PreTrainedModel, tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "tiny.gguf", llama, "llama", changes={"llama.block_count": 50_000_000})
    with pytest.raises(StartupError, match=r"too few for the 50000000 layers"):
        load_runner(path)


def test_stored_rotary_frequencies_are_without_effect(llama: PreTrainedModel, tmp_path: Path) -> None:
    extra = {"blk.0.attn_rot_embd.weight": torch.ones(8)}
    path = write_gguf(tmp_path / "tiny.gguf", llama, "llama", extra_tensors=extra)
    assert continuation(path) == greedy(llama, PROMPT, 8)


@pytest.mark.parametrize("size", [0, 3, 20, 1000, 60_000, -1])
def test_a_file_that_is_cut_short_is_refused(size: int, llama: PreTrainedModel, tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "tiny.gguf", llama, "llama")
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(StartupError, match=rf"^The (GGUF )?file {path} is (not a readable GGUF file|cut short): .*\.$"):
        opened(path)
