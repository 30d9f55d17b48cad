"""A GGUF file's quantized weights stay quantized in memory and give the answers of the dequantized weights."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from ebbtide.errors import StartupError
from ebbtide.messages import SamplingParams
from ebbtide.model_runner.checkpoint.quantized_rows import KINDS, QuantizedRows

from ..driver import Driver, load_runner
from ..families import VOCAB_SIZE
from ..gguf_files import write_gguf
from ..models.quantized_llama import dequantized, quantized_rows

PROMPTS = [[5, 300, 17, 40, 411, 9, 77, 250] * count for count in (1, 12)]
NAMES = {
    "attn_q": 256,
    "attn_k": 128,
    "attn_v": 128,
    "attn_output": 256,
    "ffn_gate": 256,
    "ffn_up": 256,
    "ffn_down": 256,
}
# As llama-quantize mixes formats, and a tensor in a format that the kernels do not have.
MIXED = {"attn_v": "Q6_K", "ffn_down": "Q6_K", "attn_k": "Q8_0", "attn_output": None}


@pytest.fixture(scope="module")
def llama() -> PreTrainedModel:
    torch.manual_seed(7)
    config = LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=256,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        pad_token_id=0,
    )
    return LlamaForCausalLM(config)


def written(folder: Path, model: PreTrainedModel, kind: str) -> tuple[Path, Path]:
    """A file whose matrices have the format, or several if ``kind`` is "mixed", and a file with the same in float32."""
    tensors: dict[str, QuantizedRows] = {}
    for seed, (name, rows) in enumerate(NAMES.items()):
        for layer in range(2):
            own = MIXED.get(name, "Q4_K") if kind == "mixed" else kind
            if own is not None:
                tensors[f"blk.{layer}.{name}.weight"] = quantized_rows(own, (rows, 256), 10 * layer + seed)
    tensors["token_embd.weight"] = quantized_rows("Q5_1" if kind == "mixed" else kind, (VOCAB_SIZE, 256), 99)
    exact = {name: dequantized(rows) for name, rows in tensors.items()}
    return (
        write_gguf(folder / "tiny.gguf", model, "llama", extra_tensors=tensors),
        write_gguf(folder / "exact.gguf", model, "llama", extra_tensors=exact),
    )


def answers(path: Path, **options: object) -> list[list[int]]:
    driver = Driver(load_runner(path, dtype="auto", **options), chunk=64)
    return driver.generate(PROMPTS, SamplingParams(max_tokens=8, temperature=0))


@pytest.mark.parametrize("kind", [*KINDS, "mixed"])
def test_quantized_weights_answer_as_their_dequantized_weights(
    kind: str, llama: PreTrainedModel, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, exact = written(tmp_path, llama, kind)
    with caplog.at_level(logging.INFO):
        found = answers(path)
    assert f"({'BF16, Q4_K, Q5_1, Q6_K, Q8_0' if kind == 'mixed' else f'BF16, {kind}'})" in caplog.text
    assert found == answers(exact) == answers(path, quantization="none")


def test_int8_quantizes_the_weights_that_are_not_quantized(
    llama: PreTrainedModel, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, _ = written(tmp_path, llama, "Q4_K")
    with caplog.at_level(logging.INFO):
        answers(path, quantization="int8")
    assert "(Q4_K, Q8_0)" in caplog.text


@pytest.mark.parametrize("options", [{"dtype": "float32"}, {"dtype": "auto", "attention_backend": "torch"}])
def test_int8_without_compiled_code_is_refused(
    options: dict[str, object], llama: PreTrainedModel, tmp_path: Path
) -> None:
    path = write_gguf(tmp_path / "tiny.gguf", llama, "llama")
    with pytest.raises(StartupError, match=r"^--quantization int8 is not supported for tiny with these settings"):
        load_runner(path, quantization="int8", **options)
