"""docs/models.md lists every family that the tests run, as safetensors and as GGUF."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import GenerationConfig

from ebbtide.errors import StartupError
from ebbtide.messages import SamplingParams

from .checkpoints import write_checkpoint
from .driver import Driver, load_runner
from .families import BACKED, FAMILIES, MORE, NATIVE
from .gguf_files import write_gguf
from .models_page import PAGE, models_page, unlisted_architectures
from .reference import greedy, load_reference

NUM_TOKENS = 8
# Within a window; beyond the windows of the families and the original context of scaled rotary embedding.
LENGTHS = (9, 100)
EQUAL = [name for name, family in FAMILIES.items() if not family.refusal]


def prompts() -> list[list[int]]:
    generator = torch.Generator().manual_seed(5)
    return [torch.randint(3, 512, (length,), generator=generator).tolist() for length in LENGTHS]


def outputs_of(path: Path) -> list[list[int]]:
    greedy_params = SamplingParams(max_tokens=NUM_TOKENS, temperature=0)
    return Driver(load_runner(path), chunk=64).generate(prompts(), greedy_params)


def test_the_page_is_written_from_the_table() -> None:
    assert PAGE.read_text(encoding="utf-8") == models_page(), "run python -m tests.model_runner.models_page"


def test_every_gguf_architecture_is_in_the_table() -> None:
    assert unlisted_architectures() == set()


@pytest.mark.parametrize("name", [name for name, family in FAMILIES.items() if family.gguf is not None])
def test_a_gguf_file_gives_the_output_of_the_original_model(name: str, tmp_path: Path) -> None:
    family = FAMILIES[name]
    assert family.gguf is not None
    model = family.model(seed=7)
    model.generation_config = GenerationConfig(pad_token_id=0)
    path = write_gguf(tmp_path / "tiny.gguf", model, family.gguf)
    assert outputs_of(path) == [greedy(model, prompt, NUM_TOKENS) for prompt in prompts()]


# The families of NATIVE and BACKED run in every test run, in test_runner.py and models/test_transformers_backed.py.
@pytest.mark.soak
@pytest.mark.parametrize("name", [name for name in EQUAL if name in MORE])
def test_a_safetensors_checkpoint_gives_the_output_of_the_original_model(name: str, tmp_path: Path) -> None:
    model = load_reference(write_checkpoint(tmp_path, name))
    assert outputs_of(tmp_path) == [greedy(model, prompt, NUM_TOKENS) for prompt in prompts()]


@pytest.mark.parametrize("name", [name for name, family in FAMILIES.items() if family.refusal])
def test_a_family_that_the_page_calls_refused_is_refused(name: str, tmp_path: Path) -> None:
    write_checkpoint(tmp_path, name)
    with pytest.raises(StartupError, match=FAMILIES[name].refusal):
        load_runner(tmp_path)


def test_all_groups_of_the_table_are_on_the_page() -> None:
    assert FAMILIES.keys() == NATIVE.keys() | BACKED.keys() | MORE.keys()
