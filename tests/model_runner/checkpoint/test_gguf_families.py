"""Every family as a GGUF file: the same output as transformers on the original model, or one sentence."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import GenerationConfig

from ebbtide.messages import SamplingParams

from ..driver import Driver, load_runner
from ..families import FAMILIES
from ..gguf_files import write_gguf
from ..reference import greedy

NUM_TOKENS = 8
# Within a window; beyond the windows of the families and the original context of scaled rotary embedding.
LENGTHS = (9, 100)


def prompts() -> list[list[int]]:
    generator = torch.Generator().manual_seed(5)
    return [torch.randint(3, 512, (length,), generator=generator).tolist() for length in LENGTHS]


@pytest.mark.parametrize("name", [name for name, family in FAMILIES.items() if family.gguf is not None])
def test_a_gguf_file_gives_the_output_of_the_original_model(name: str, tmp_path: Path) -> None:
    family = FAMILIES[name]
    assert family.gguf is not None
    model = family.model(seed=7)
    model.generation_config = GenerationConfig(pad_token_id=0)
    path = write_gguf(tmp_path / "tiny.gguf", model, family.gguf)
    outputs = Driver(load_runner(path), chunk=64).generate(
        prompts(), SamplingParams(max_tokens=NUM_TOKENS, temperature=0)
    )
    assert outputs == [greedy(model, prompt, NUM_TOKENS) for prompt in prompts()]
