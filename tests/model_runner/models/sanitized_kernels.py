"""Runs the compiled forward pass with the sanitizers for addresses and undefined behavior.

A program, because the sanitizers' libraries must be loaded before Python.
"""

from __future__ import annotations

import sys
from functools import partial

from ebbtide.model_runner.checkpoint.quantized_rows import KINDS
from ebbtide.model_runner.kernels.llama_forward import WITHOUT_TILES
from ebbtide.model_runner.kernels.native_build import VECTORS
from ebbtide.model_runner.models.llama_native import NativeLlama

from . import quantized_llama
from .small_llama import Sizes, small_llama
from .test_llama_native import SIZES, answers

# Vectors are loaded from addresses of any alignment, as their types say.
SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-fno-sanitize=alignment", "-g")
INSTRUCTION_SETS = {"native": VECTORS, "no-tiles": WITHOUT_TILES, "avx2": ("-march=haswell",)}


def main(name: str) -> None:
    """Run every size of the tests with one instruction set. A sanitizer that finds something ends the process."""
    vectors = (*INSTRUCTION_SETS[name], *SANITIZERS)
    for sizes in SIZES.values():
        for quantization in ("none", "int8"):
            check(NativeLlama.of(small_llama(sizes), quantization=quantization, vectors=vectors), sizes)
    base = small_llama(quantized_llama.SIZES)
    for kind in (*KINDS, "mixed"):
        weights = quantized_llama.weights_of(partial(quantized_llama.kind_of, kind))
        model = NativeLlama(base.config, base.rotary, weights.items(), vectors=vectors)
        check(model, quantized_llama.SIZES)


def check(model: NativeLlama, sizes: Sizes) -> None:
    """Compute the answers, all of which are numbers."""
    assert all(row.isfinite().all() for row in answers(model, sizes))


if __name__ == "__main__":
    main(sys.argv[1])
