from __future__ import annotations

from pathlib import Path

import pytest

from ebbtide.messages import SamplingParams
from ebbtide.tokenization.model_files import smollm2_path

from ..model_runner.checkpoints import write_checkpoint
from ..model_runner.driver import Driver, load_runner
from ..model_runner.families import BACKED, NATIVE
from ..model_runner.reference import greedy, load_reference

pytestmark = pytest.mark.gpu
needs_smollm2 = pytest.mark.skipif(not smollm2_path().is_file(), reason="the default model is not on this machine")
NUM_TOKENS = 32
GREEDY = SamplingParams(max_tokens=NUM_TOKENS, temperature=0.0)


def prompts(vocab_size: int) -> list[list[int]]:
    """Prompts of varied ids, shorter and longer than a page and a chunk."""
    return [[3 + place * 37 % (vocab_size - 3) for place in range(length)] for length in (1, 16, 33, 70, 200)]


@needs_smollm2
@pytest.mark.parametrize("backend", ["torch", "triton"])
@pytest.mark.parametrize(("page_size", "chunk"), [(1, 64), (16, 2048), (64, 32)])
def test_smollm2_on_cuda_has_the_greedy_output_of_transformers(backend: str, page_size: int, chunk: int) -> None:
    model = load_reference(smollm2_path())
    expected = [greedy(model, prompt, NUM_TOKENS) for prompt in prompts(40_000)]
    runner = load_runner(smollm2_path(), device="cuda", attention_backend=backend, page_size=page_size)
    assert Driver(runner, chunk=chunk).generate(prompts(40_000), GREEDY) == expected


@pytest.mark.parametrize("family", NATIVE | BACKED)
def test_a_tiny_model_on_cuda_has_the_greedy_output_of_transformers(family: str, tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, family)
    model = load_reference(folder)
    expected = [greedy(model, prompt, NUM_TOKENS) for prompt in prompts(512)]
    runner = load_runner(folder, device="cuda", attention_backend="triton")
    assert Driver(runner, chunk=50).generate(prompts(512), GREEDY) == expected


@needs_smollm2
def test_smollm2_in_bfloat16_answers_the_same_twice() -> None:
    runner = load_runner(smollm2_path(), device="cuda", dtype="bfloat16", attention_backend="triton")
    together = Driver(runner).generate(prompts(40_000), GREEDY)
    again = Driver(runner).generate(prompts(40_000), GREEDY)
    assert together == again
