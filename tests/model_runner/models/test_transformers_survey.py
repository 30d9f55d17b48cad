from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from ebbtide.errors import StartupError
from ebbtide.model_runner.checkpoint.weights import open_checkpoint
from ebbtide.model_runner.models import NATIVE
from ebbtide.model_runner.models.transformers_backed import FOREIGN_ERRORS, TransformersModel, check_config, load
from ebbtide.tokenization.model_files import ModelFiles

from .shrinking import shrunken_model

# Loads, passes the check at start, and so gives transformers' own logits chunk by chunk through the page table.
SAMPLE = ["cohere2", "deepseek_v3", "diffllama", "gemma3", "gptj", "hrm_text", "mixtral", "opt", "stablelm"]
# The class and the configuration show no problem of these models; the check at start finds it.
REFUSED_AT_START = {"bert-generation", "doge", "git", "mimo_v2_flash"}
NO_DEFAULT_CONFIG = {"gemma4_assistant"}


def load_shrunken(model_type: str, folder: Path) -> TransformersModel:
    """Loads the model from a checkpoint on disk, like the daemon."""
    model = shrunken_model(model_type)
    model.config.architectures = [type(model).__name__]
    model.save_pretrained(folder)
    checkpoint = open_checkpoint(ModelFiles(model_type, str(folder)))
    return load(checkpoint, dtype=torch.float32, device=torch.device("cpu"))


@pytest.mark.parametrize("model_type", SAMPLE)
def test_an_architecture_runs_with_our_attention(model_type: str, tmp_path: Path) -> None:
    assert load_shrunken(model_type, tmp_path).vocab_size == 300


@pytest.mark.parametrize("model_type", sorted(REFUSED_AT_START - {"git"}))
def test_problems_that_appear_only_in_a_forward_pass_are_refused_too(model_type: str, tmp_path: Path) -> None:
    with pytest.raises(StartupError, match=rf"The architecture {MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[model_type]} "):
        load_shrunken(model_type, tmp_path)


@pytest.mark.soak
@pytest.mark.filterwarnings("default")
def test_every_architecture_that_is_tried_runs_or_is_refused(tmp_path: Path) -> None:
    ran, refused, not_shrunken = [], set(), []
    for model_type in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.keys() - NO_DEFAULT_CONFIG:
        architecture = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[model_type]
        if architecture in NATIVE:
            continue  # it does not run through transformers
        try:
            check_config(architecture, CONFIG_MAPPING[model_type]())
            shrunken_model(model_type)
        except StartupError:
            continue
        except FOREIGN_ERRORS:
            not_shrunken.append(model_type)  # our small sizes do not fit it
            continue
        try:
            load_shrunken(model_type, tmp_path / model_type)
            ran.append(model_type)
        except StartupError:
            refused.add(model_type)
    print(f"{len(ran)} ran; {sorted(refused)} were refused; {not_shrunken} could not be made small")
    assert len(ran) >= 75
    assert refused <= REFUSED_AT_START | {"beam", "blt", "deepseek_v2"}
