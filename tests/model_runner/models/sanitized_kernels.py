"""Runs the compiled forward pass with the sanitizers for addresses and undefined behavior.

A program, because the sanitizers' libraries must be loaded before Python.
"""

from __future__ import annotations

import sys

from ebbtide.model_runner.kernels.llama_forward import WITHOUT_TILES
from ebbtide.model_runner.kernels.native_build import VECTORS
from ebbtide.model_runner.models.llama_native import NativeLlama

from .small_llama import small_llama
from .test_llama_native import SIZES, answers

# Vectors are loaded from addresses of any alignment, as their types say.
SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-fno-sanitize=alignment", "-g")
INSTRUCTION_SETS = {"native": VECTORS, "no-tiles": WITHOUT_TILES, "avx2": ("-march=haswell",)}


def main(name: str) -> None:
    """Run every size of the tests with one instruction set. A sanitizer that finds something ends the process."""
    for sizes in SIZES.values():
        logits = answers(NativeLlama(small_llama(sizes), (*INSTRUCTION_SETS[name], *SANITIZERS)), sizes)
        assert all(row.isfinite().all() for row in logits)


if __name__ == "__main__":
    main(sys.argv[1])
