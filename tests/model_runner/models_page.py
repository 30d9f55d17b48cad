"""Writes docs/models.md: ``python -m tests.model_runner.models_page``. The tests check what the page states."""

from __future__ import annotations

from pathlib import Path

from ebbtide.model_runner.checkpoint.gguf_architectures import ARCHITECTURES
from ebbtide.model_runner.models import NATIVE as NATIVE_CLASSES

from .families import FAMILIES, Family
from .gguf_kinds import DEQUANTIZED

PAGE = Path(__file__).resolve().parents[2] / "docs" / "models.md"
INTRODUCTION = """# Models

<!-- Written by `python -m tests.model_runner.models_page` from tests/model_runner/families.py. Do not edit. -->

"Equal" means that the tests generate a tiny random model of the family, and that ebbtide's greedy output equals that
of `transformers` on the same model, token for token in float32, for prompts beyond the sliding window and beyond the
original context of scaled rotary embedding. Decoder-only families that are not in the table run through `transformers`
too: at start, ebbtide compares the logits computed with its own attention with those of the library's attention, and
refuses the model if they differ. All other models are refused at start with one error message.

## Families

"native" is ebbtide's own implementation; "transformers" is the library's model code with ebbtide's attention.

"""
GGUF = """
## GGUF files

A GGUF file is served if its architecture is in the table and if every metadata key of the architecture and every
tensor is supported; otherwise it is refused with an error message that names the file and the key. For rotary
embeddings, ebbtide reads `rope.scaling.type` (none, linear, yarn or longrope), `rope.scale_linear`, a factor without a
type (linear), and the frequency factors of Llama 3.1 and 3.2 and of Phi-3. The parts of a split file
(`…-00001-of-00003.gguf`) are found from the name of any of them.

The format has no key for some fields, so a file can differ from the original checkpoint: Mistral 7B v0.1's sliding
window, the `mscale` of YaRN, and `norm_topk_prob` of mixture-of-experts models. In these cases ebbtide computes what
llama.cpp computes.

Tokenizers: `tokenizer.ggml.model` gpt2 (byte-level BPE), llama (SentencePiece BPE) and t5 (SentencePiece Unigram);
others are refused. Prefix spaces, BOS, EOS, byte, control and user-defined tokens are handled as in llama.cpp: a prefix
space (`add_space_prefix`) is added at the start of a text and after each control token. Both SentencePiece
models are tested against the `sentencepiece` library. With llama.cpp's test vocabularies (Llama 2 and 3, Phi-3,
Qwen 2, GPT-2, Command R, StarCoder, Refact), all 8 × 47 texts are encoded into the expected tokens.

On the CPU, the compiled code for the Llama family keeps `Q8_0`, `Q4_0`, `Q4_1`, `Q5_0`, `Q5_1`, `Q4_K`, `Q5_K` and
`Q6_K` matrices quantized in memory, each in its own format. With AMX, they are dequantized to bfloat16 directly before
they are multiplied, and the result is bitwise identical to that of weights that were dequantized to bfloat16 at the
start. On other CPUs, the inputs of such a layer are quantized to int8 with a scale for each 32 of them, and bytes are
multiplied: with VNNI where the CPU has it, otherwise with 8-bit multiply-adds
([decision 29](decisions/models/0029-without-amx-layers-multiply-bytes.md)). `--quantization none` dequantizes all
weights at the start. `--quantization int8` quantizes the bfloat16, float16 and float32 weights of a model of the Llama
family to int8, with a float16 scale for each output row and group of 32 inputs (as `Q8_0`). ARM CPUs run the same
code with vectors of four numbers, without special instructions for these formats.

All other weights are dequantized when they are loaded, to the values of the `gguf` package:
"""
CHECKED = """
The tests write their GGUF files themselves. For every family in the table, the file of llama.cpp's own converter
(`convert_hf_to_gguf.py` of llama-cpp-python 0.3.36) was compared with `transformers` by hand in the same way, with
prompts of 1 to 300 tokens (LongRoPE: 90) and 20 output tokens; all outputs were equal.

## Quantized safetensors

fp8, GPTQ, AWQ, bitsandbytes, compressed-tensors and other quantized checkpoints in safetensors are refused: "its
weights are quantized".
"""


def models_page() -> str:
    """The text of the page."""
    kinds = ", ".join(f"`{kind.name}`" for kind in DEQUANTIZED)
    return INTRODUCTION + families_table() + "\n" + GGUF + f"`F32`, `F16`, `BF16`, {kinds}.\n" + CHECKED


def families_table() -> str:
    """One row for each entry of the table."""
    lines = ["| family | runs | safetensors | GGUF |", "|---|---|---|---|"]
    lines += [_row(name, family) for name, family in FAMILIES.items()]
    return "\n".join(lines)


def _row(name: str, family: Family) -> str:
    runs = "native" if f"{family.prefix.removesuffix('Text')}ForCausalLM" in NATIVE_CLASSES else "transformers"
    if family.refusal:
        return f"| {name} | – | refused: {family.refusal} | refused |"
    return f"| {name} | {runs} | equal | {_gguf(family)} |"


def _gguf(family: Family) -> str:
    if family.gguf is not None:
        return f"equal (`{family.gguf}`)"
    others = any(other.gguf for other in FAMILIES.values() if other.prefix == family.prefix)
    return "not tested: GGUF has no key for a setting of this test model" if others else "refused"


def unlisted_architectures() -> set[str]:
    """GGUF architectures that ebbtide reads and no family of the table has."""
    return set(ARCHITECTURES) - {family.gguf for family in FAMILIES.values()}


if __name__ == "__main__":
    PAGE.write_text(models_page(), encoding="utf-8")
