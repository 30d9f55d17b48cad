"""The compiled forward pass of the Llama family equals torch in float32, and is bit-equal for every way to run a
request.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import Tensor

from ebbtide.model_runner.attention import cpu_native, torch_reference
from ebbtide.model_runner.kernels.llama_forward import WITHOUT_TILES
from ebbtide.model_runner.kernels.native_build import VECTORS
from ebbtide.model_runner.models.llama import LlamaModel
from ebbtide.model_runner.models.llama_native import NativeLlama

from .small_llama import Conversations, Sizes, small_llama

ROOT = Path(__file__).parents[3]
SIZES = {
    "plain": Sizes(),
    "pages of 1": Sizes(page_size=1),
    "pages of 64": Sizes(page_size=64),
    "one KV head a head": Sizes(heads=3, kv_heads=3),
    "one KV head for seven": Sizes(heads=7, kv_heads=1),
    "head size 64": Sizes(head_dim=64),
    "head size 80": Sizes(head_dim=80),
    "head size 128": Sizes(head_dim=128),
    "sizes that are no multiples": Sizes(hidden=72, intermediate=100, vocab_size=203),
    "tied": Sizes(switches={"tied": True}, vocab_size=203),
    "biases": Sizes(switches={"qkv_bias": True, "out_bias": True, "mlp_bias": True}, intermediate=100),
    "norms of queries and keys": Sizes(switches={"qk_norm": True}),
    "window": Sizes(window=24),
    "window past a block": Sizes(window=100, page_size=1),
}
CAPABILITIES = torch.cpu.get_capabilities()
HAS = {"avx2": "avx2", "avx512": "avx512_f", "no tiles": "amx_bf16"}
VARIANTS = {"avx2": ("-march=haswell",), "avx512": ("-march=skylake-avx512",), "no tiles": WITHOUT_TILES}


def tokens(count: int, seed: int) -> list[int]:
    """Return random tokens that every vocabulary in this file has."""
    return random.Random(seed).choices(range(192), k=count)


PROMPTS = [tokens(count, count) for count in (1, 5, 64, 130, 33)]
NEXT = [tokens(6, 100 + row) for row in range(len(PROMPTS))]


def answers(model: NativeLlama, sizes: Sizes, kv_dtype: torch.dtype = torch.bfloat16) -> list[Tensor]:
    """Logits of each row after its prompt and after each next token, all rows in one batch: [rows][steps, vocab]."""
    conversations = Conversations(sizes, kv_dtype)
    attention = cpu_native.build(conversations.pool)
    logits = [conversations.step(model, attention, [(row, 0, prompt) for row, prompt in enumerate(PROMPTS)])]
    for step in range(len(NEXT[0])):
        items = [(row, len(prompt) + step, [NEXT[row][step]]) for row, prompt in enumerate(PROMPTS)]
        logits.append(conversations.step(model, attention, items))
    return list(torch.stack(logits, 1))


def truth(sizes: Sizes, model: LlamaModel | None = None) -> list[Tensor]:
    """Return the logits that torch computes in float32 from the same weights, one row at a time.

    model: other weights than those of ``small_llama``, in float32.
    """
    model, rows = model or small_llama(sizes, torch.float32), []
    for row, prompt in enumerate(PROMPTS):
        conversations = Conversations(sizes, torch.float32)
        conversations.pool.data.zero_()  # torch multiplies masked values by zero
        attention = torch_reference.build(conversations.pool)
        steps = [conversations.step(model, attention, [(row, 0, prompt)])]
        for step, token in enumerate(NEXT[row]):
            steps.append(conversations.step(model, attention, [(row, len(prompt) + step, [token])]))
        rows.append(torch.cat(steps))
    return rows


def assert_close(found: list[Tensor], wanted: list[Tensor], factor: float = 1.0) -> None:
    """The difference is within the rounding error of bfloat16, about 2^-8 at each input of a linear layer.

    factor: 1 if the weights are exact in bfloat16.
    """
    for ours, theirs in zip(found, wanted, strict=True):
        assert ours.isfinite().all()
        error = (ours - theirs).norm(dim=-1) / theirs.norm(dim=-1)
        assert error.max() < 0.03 * factor, error
        assert error.median() < 0.013 * factor, error


@pytest.mark.parametrize("name", SIZES)
def test_logits_are_those_of_torch_in_float32(name: str) -> None:
    assert_close(answers(NativeLlama.of(small_llama(SIZES[name])), SIZES[name]), truth(SIZES[name]))


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_instruction_set_computes_the_same_model(variant: str) -> None:
    if not CAPABILITIES.get(HAS[variant]):
        pytest.skip(f"this CPU has no {HAS[variant]}")
    for sizes in (SIZES["head size 80"], SIZES["biases"]):
        assert_close(answers(NativeLlama.of(small_llama(sizes), vectors=VARIANTS[variant]), sizes), truth(sizes))


@pytest.mark.parametrize("vectors", [VECTORS, *VARIANTS.values()], ids=["native", *VARIANTS])
@pytest.mark.parametrize("name", ["plain", "head size 128", "window past a block", "sizes that are no multiples"])
def test_a_row_alone_and_in_chunks_gets_the_same_bits(name: str, vectors: tuple[str, ...]) -> None:
    variant = next((key for key, flags in VARIANTS.items() if flags == vectors), None)
    if variant is not None and not CAPABILITIES.get(HAS[variant]):
        pytest.skip(f"this CPU has no {HAS[variant]}")
    sizes = SIZES[name]
    model = NativeLlama.of(small_llama(sizes), vectors=vectors)
    for row, together in enumerate(answers(model, sizes)):
        assert_same_in_chunks(model, sizes, row, together)


def assert_same_in_chunks(
    model: NativeLlama, sizes: Sizes, row: int, together: Tensor, kv_dtype: torch.dtype = torch.bfloat16
) -> None:
    """A row alone and in chunks gets the bits that it gets next to others."""
    sequence = PROMPTS[row] + NEXT[row]
    conversations = Conversations(sizes, kv_dtype)
    attention = cpu_native.build(conversations.pool)
    for first, last in chunks(len(sequence), row):
        alone = conversations.step(model, attention, [(row, first, sequence[first:last])])
        step = last - len(PROMPTS[row])
        if step >= 0:
            assert torch.equal(alone[0], together[step]), (row, first, last)


def chunks(length: int, seed: int) -> list[tuple[int, int]]:
    """Cuts 0..length into random chunks of 1 to 40 tokens."""
    source, cuts = random.Random(seed), [0]
    while cuts[-1] < length:
        cuts.append(min(cuts[-1] + source.randint(1, 40), length))
    return list(pairwise(cuts))


def test_the_number_of_threads_does_not_change_a_bit() -> None:
    sizes, threads = SIZES["head size 80"], torch.get_num_threads()
    results = []
    try:
        for count in (1, 2, 5):
            torch.set_num_threads(count)
            results.append(torch.cat(answers(NativeLlama.of(small_llama(sizes)), sizes)))
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


def test_fewer_threads_than_asked_for_compute_the_same(tmp_path: Path) -> None:
    """A limit of OpenMP may give a step fewer threads than torch has."""
    sizes = SIZES["plain"]
    torch.save(answers(NativeLlama.of(small_llama(sizes)), sizes), tmp_path / "expected")
    command = [sys.executable, "-m", "tests.model_runner.models.limited_threads", str(tmp_path / "expected")]
    environment = os.environ | {"OMP_THREAD_LIMIT": "2", "OMP_NUM_THREADS": "4"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.soak
@pytest.mark.parametrize("name", ["native", "no-tiles", "avx2"])
def test_the_sanitizers_find_nothing_in_the_compiled_code(name: str, tmp_path: Path) -> None:
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("there is no g++")
    libraries = [
        subprocess.run(
            [compiler, f"-print-file-name={file}"], capture_output=True, text=True, check=True
        ).stdout.strip()
        for file in ("libasan.so", "libubsan.so")
    ]
    sanitized = {"LD_PRELOAD": ":".join(libraries), "ASAN_OPTIONS": "detect_leaks=0:verify_asan_link_order=0"}
    command = [sys.executable, "-m", "tests.model_runner.models.sanitized_kernels", name]
    # Two threads, so that they share work.
    environment = os.environ | sanitized | {"EBBTIDE_CACHE": str(tmp_path), "OMP_NUM_THREADS": "2"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
