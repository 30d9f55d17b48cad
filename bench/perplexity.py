"""Perplexity and next-token agreement of SmolLM2 with several weights, against transformers in float32.

    python bench/perplexity.py [--tokens 4096] [--file FILE.gguf] [--weights bfloat16 stored int8 Q4_0]
        [--kv-cache-dtype auto|int8] [--variant native|no-tiles|avx512|avx2]

The text is that of README.md and docs/decisions/, in windows of 512 tokens, each on its own. The model is the packaged
file, or another GGUF file of SmolLM2. Weights: "bfloat16" dequantizes the file's weights, "stored" keeps them as they
are, "int8" is --quantization int8 of the dequantized weights, and other names are formats of the gguf package into
which all matrices are quantized. transformers computes with the dequantized weights in float32. A line is a format:
perplexity, its ratio to transformers', and the share of positions with the same most probable next token.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch
from cpu_forward import CPU, PAGE_SIZE, VARIANTS, batch_of
from gguf import GGMLQuantizationType, quantize
from gguf_to_safetensors import read_model
from torch import Tensor
from torch.nn import functional

from ebbtide.model_runner.attention import cpu_native
from ebbtide.model_runner.checkpoint.quantized_rows import QuantizedRows
from ebbtide.model_runner.checkpoint.weights import open_checkpoint
from ebbtide.model_runner.kv.kv_pool import KVPool
from ebbtide.model_runner.models import llama
from ebbtide.model_runner.models.llama_native import NativeLlama
from ebbtide.model_runner.models.model import Quantization
from ebbtide.tokenization.model_files import resolve_model, smollm2_path
from ebbtide.tokenization.tokenizer import load_tokenizer

WINDOW = 512
ROOT = Path(__file__).resolve().parent.parent


def windows(count: int) -> list[Tensor]:
    """The first tokens of the text."""
    files = [ROOT / "README.md", *sorted((ROOT / "docs" / "decisions").glob("*.md"))]
    text = "\n\n".join(path.read_text() for path in files)
    ids = load_tokenizer(resolve_model("smollm2")).encode(text, add_special_tokens=False)
    return list(torch.tensor(ids[: count // WINDOW * WINDOW]).view(-1, WINDOW))


def model_with(name: str, path: Path, vectors: tuple[str, ...]) -> NativeLlama:
    """The model with weights in a format."""
    checkpoint = open_checkpoint(resolve_model(str(path)))
    config, rotary, names = llama.planned(checkpoint, dtype=torch.bfloat16, device=CPU)
    stored = checkpoint.stored_weights(names) if name == "stored" else checkpoint.tensors(names)
    if name in GGMLQuantizationType.__members__:
        stored = quantized_to(GGMLQuantizationType[name], stored)
    quantization: Quantization = "int8" if name == "int8" else "none"
    return NativeLlama(config, rotary, stored, quantization=quantization, vectors=vectors)


def quantized_to(
    kind: GGMLQuantizationType, tensors: Iterator[tuple[str, Tensor]]
) -> Iterator[tuple[str, Tensor | QuantizedRows]]:
    """Quantize the matrices."""
    for name, tensor in tensors:
        is_matrix = tensor.dim() == 2
        yield name, QuantizedRows(kind.name, torch.from_numpy(quantize(tensor.numpy(), kind))) if is_matrix else tensor


@torch.inference_mode()
def logits_of(model: NativeLlama, tokens: Tensor, kv_dtype: torch.dtype) -> Tensor:
    """Logits after each token."""
    table = torch.arange(WINDOW // PAGE_SIZE).int()[None]
    attention = cpu_native.build(KVPool(model.kv_shape, WINDOW // PAGE_SIZE, PAGE_SIZE, dtype=kv_dtype, device=CPU))
    batch = replace(batch_of(table, [(0, WINDOW)]), token_ids=tokens, wanted=torch.arange(WINDOW))
    attention.plan(batch)
    return model.logits(model.forward(batch, attention)).float()


def main() -> None:
    """Print one line per format."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--file", type=Path, default=smollm2_path())
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--weights", nargs="+", default=["bfloat16", "stored", "int8", "Q5_1", "Q4_1", "Q4_0"])
    parser.add_argument("--kv-cache-dtype", choices=("auto", "int8"), default="auto")
    parser.add_argument("--variant", choices=VARIANTS, default="native")
    arguments = parser.parse_args()
    kv_dtype = torch.int8 if arguments.kv_cache_dtype == "int8" else torch.bfloat16
    path, parts = arguments.file, windows(arguments.tokens)
    reference = read_model(path, torch.float32)
    losses, choices = [], []
    with torch.inference_mode():
        for tokens in parts:
            logits = reference(tokens[None]).logits[0]
            losses.append(functional.cross_entropy(logits[:-1], tokens[1:]))
            choices.append(logits.argmax(-1))
    truth = torch.stack(losses).mean().exp().item()
    print(f"{'transformers':>14} {truth:9.4f}", flush=True)
    for name in arguments.weights:
        model, losses, same = model_with(name, path, VARIANTS[arguments.variant]), [], []
        for tokens, wanted in zip(parts, choices, strict=True):
            logits = logits_of(model, tokens, kv_dtype)
            losses.append(functional.cross_entropy(logits[:-1], tokens[1:]))
            same.append((logits.argmax(-1) == wanted).float().mean())
        perplexity = torch.stack(losses).mean().exp().item()
        agreement = torch.stack(same).mean().item()
        print(f"{name:>14} {perplexity:9.4f} {perplexity / truth:8.4f} {agreement:8.2%}", flush=True)


if __name__ == "__main__":
    main()
