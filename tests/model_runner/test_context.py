from __future__ import annotations

import pytest
import transformers

from ebbtide.errors import StartupError
from ebbtide.model_runner.context import longest_context


def test_a_context_is_as_long_as_the_configuration_says() -> None:
    assert longest_context(transformers.LlamaConfig(max_position_embeddings=512)) == 512


@pytest.mark.parametrize("config_class", [transformers.GPT2Config, transformers.CTRLConfig])
def test_older_names_of_the_length_count_too(config_class: type[transformers.PretrainedConfig]) -> None:
    assert longest_context(config_class(n_positions=96)) == 96


def test_a_nested_configuration_is_asked_for_its_text_part() -> None:
    config = transformers.Gemma3Config(text_config={"max_position_embeddings": 640})
    assert longest_context(config) == 640


@pytest.mark.parametrize("original", [64, 4096])
def test_longrope_stays_within_the_length_of_one_set_of_frequencies(original: int) -> None:
    factors = {"short_factor": [1.0] * 48, "long_factor": [2.0] * 48}
    config = transformers.Phi3Config(
        pad_token_id=0,
        max_position_embeddings=131072,
        original_max_position_embeddings=original,
        rope_scaling={"type": "longrope", **factors},
    )
    assert longest_context(config) == original


def test_other_scalings_keep_their_length() -> None:
    yarn = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 10000.0, "original_max_position_embeddings": 128}
    assert longest_context(transformers.LlamaConfig(max_position_embeddings=512, rope_parameters=yarn)) == 512


def test_a_configuration_without_a_length_is_refused_in_one_sentence() -> None:
    with pytest.raises(StartupError, match="a mamba model does not state"):
        longest_context(transformers.MambaConfig())
