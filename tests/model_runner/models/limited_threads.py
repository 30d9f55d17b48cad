"""Compares the logits of a small model with saved ones. A program, because OpenMP reads its limit of threads once."""

from __future__ import annotations

import sys

import torch

from ebbtide.model_runner.models.llama_native import NativeLlama

from .small_llama import small_llama
from .test_llama_native import SIZES, answers


def main(path: str) -> None:
    """Run the plain sizes with four threads, of which the environment allows fewer."""
    torch.set_num_threads(4)
    sizes = SIZES["plain"]
    found = answers(NativeLlama.of(small_llama(sizes)), sizes)
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(found, torch.load(path), strict=True))


if __name__ == "__main__":
    main(sys.argv[1])
