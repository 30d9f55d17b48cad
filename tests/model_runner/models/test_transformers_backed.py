from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from ebbtide.errors import StartupError
from ebbtide.messages import SamplingParams
from ebbtide.model_runner.checkpoint.weights import open_checkpoint
from ebbtide.model_runner.models.transformers_attention import AttentionCall
from ebbtide.model_runner.models.transformers_backed import TransformersModel, check_config, load
from ebbtide.tokenization.model_files import ModelFiles

from ..checkpoints import write_tokenizer
from ..driver import Driver, load_runner
from ..families import BACKED, CONTEXT, FAMILIES, VOCAB_SIZE
from ..reference import greedy, load_reference

NUM_TOKENS = 24
GREEDY = SamplingParams(max_tokens=NUM_TOKENS, temperature=0.0)
CPU = torch.device("cpu")


def prompts() -> list[list[int]]:
    """Lengths on both sides of a page, a chunk and the sliding window; two prompts are the same."""
    generator = torch.Generator().manual_seed(5)
    lengths = [1, 7, 16, 33, 64, 70]
    made = [torch.randint(3, VOCAB_SIZE, (length,), generator=generator).tolist() for length in lengths]
    return [*made, made[3]]


def load_family(folder: Path, dtype: torch.dtype = torch.float32) -> TransformersModel:
    return load(open_checkpoint(ModelFiles(folder.name, str(folder))), dtype=dtype, device=CPU)


@pytest.fixture(scope="session")
def expected(tiny: Callable[[str], Path]) -> Callable[[str], list[list[int]]]:
    """The output of transformers' generate for ``prompts``, per family; computed once."""
    answers: dict[str, list[list[int]]] = {}

    def of_family(family: str) -> list[list[int]]:
        if family not in answers:
            model = load_reference(tiny(family))
            answers[family] = [greedy(model, prompt, NUM_TOKENS) for prompt in prompts()]
        return answers[family]

    return of_family


@pytest.mark.parametrize("family", BACKED)
def test_greedy_output_alone_is_that_of_transformers(
    family: str, tiny: Callable[[str], Path], expected: Callable[[str], list[list[int]]]
) -> None:
    driver = Driver(load_runner(tiny(family)))
    found = [driver.generate([prompt], GREEDY)[0] for prompt in prompts()]
    assert found == expected(family)


@pytest.mark.parametrize("family", BACKED)
@pytest.mark.parametrize(("page_size", "chunk"), [(1, 32), (16, 2048), (64, 10)])
def test_greedy_output_of_a_batch_is_that_of_transformers(
    family: str, page_size: int, chunk: int, tiny: Callable[[str], Path], expected: Callable[[str], list[list[int]]]
) -> None:
    driver = Driver(load_runner(tiny(family), page_size=page_size), chunk=chunk)
    assert driver.generate(prompts(), GREEDY) == expected(family)


def test_layers_have_the_parameters_of_the_configuration(tiny: Callable[[str], Path]) -> None:
    layers = load_family(tiny("gemma2")).layers
    assert [layer.window for layer in layers] == [24, None, 24]
    assert {(layer.softcap, layer.scale) for layer in layers} == {(5.0, 32**-0.5)}
    assert all(layer.sinks is not None for layer in load_family(tiny("gpt_oss")).layers)


def test_a_pool_has_room_for_one_token_of_every_layer(tiny: Callable[[str], Path]) -> None:
    shape = load_family(tiny("olmo2")).kv_shape
    assert (shape.num_layers, shape.num_kv_heads, shape.head_dim) == (3, 2, 16)


def test_bfloat16_passes_the_check_at_start(tiny: Callable[[str], Path]) -> None:
    model = load_family(tiny("phi3"), torch.bfloat16)
    assert model.vocab_size == VOCAB_SIZE


def test_models_that_depend_on_the_longest_position_are_refused(
    tiny: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    original = transformers.models.phi3.modeling_phi3.Phi3RotaryEmbedding.forward

    def stretched(self: torch.nn.Module, x: torch.Tensor, position_ids: torch.Tensor) -> object:
        return original(self, x, position_ids * (2 if position_ids.max() >= CONTEXT - 40 else 1))

    monkeypatch.setattr(transformers.models.phi3.modeling_phi3.Phi3RotaryEmbedding, "forward", stretched)
    with pytest.raises(StartupError, match="its logits with ebbtide's attention, computed in chunks, differ from"):
        load_family(tiny("phi3"))


def test_a_window_of_another_size_than_the_masks_is_refused(
    tiny: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    right: Any = AttentionCall.__dict__["window"]
    wrong = property(lambda call: None if right.fget(call) is None else right.fget(call) + 1)
    monkeypatch.setattr(AttentionCall, "window", wrong)
    with pytest.raises(StartupError, match="its logits with ebbtide's attention, computed in chunks, differ from"):
        load_family(tiny("gemma2"))


def test_the_check_at_start_leaves_the_windows_as_they_were(tiny: Callable[[str], Path]) -> None:
    model = load_family(tiny("gemma2"))
    assert [layer.window for layer in model.layers] == [24, None, 24]
    assert model._model.config.sliding_window == 24


def test_every_causal_model_of_transformers_is_tried_or_refused_in_one_sentence() -> None:
    tried, refused = [], {}
    for model_type, architecture in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.items():
        if model_type == "gemma4_assistant":
            continue  # it has no default configuration
        try:
            check_config(architecture, CONFIG_MAPPING[model_type]())
        except StartupError as error:
            refused[model_type] = str(error).replace(architecture, "X")
        else:
            tried.append(model_type)
    for sentence in refused.values():
        assert re.fullmatch(r"The architecture X is not supported: it[^.]*\.", sentence), sentence
    assert len(tried) > 100, tried
    assert {"gemma3", "gemma3_text", "mixtral", "deepseek_v3", "opt", "phi", "starcoder2"} <= set(tried)
    assert {"mamba", "jamba", "bart", "bert", "bloom", "llama4_text", "qwen3_next", "whisper"} <= set(refused)


@pytest.mark.parametrize(
    ("model_type", "reason"),
    [
        ("mamba", "it has recurrent layers, which ebbtide supports in LFM2 and Falcon-H1 only"),
        ("bart", "it has an encoder"),
        ("bert", "its attention is bidirectional"),
        ("bloom", "its attention cannot be replaced"),
        ("llama4_text", "it has layers of the kind 'chunked_attention'"),
        ("mllama", "it has cross attention"),
    ],
)
def test_a_refusal_states_the_reason(model_type: str, reason: str) -> None:
    architecture = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[model_type]
    with pytest.raises(StartupError) as caught:
        check_config(architecture, CONFIG_MAPPING[model_type]())
    assert str(caught.value) == f"The architecture {architecture} is not supported: {reason}."


def test_a_runner_refuses_an_architecture_before_it_looks_for_weights(tmp_path: Path) -> None:
    transformers.MambaConfig(architectures=["MambaForCausalLM"]).save_pretrained(tmp_path)
    with pytest.raises(StartupError, match="The architecture MambaForCausalLM is not supported: it has recurrent"):
        load_runner(tmp_path)


def test_a_checkpoint_that_brings_its_own_code_is_refused(tmp_path: Path) -> None:
    own = {"model_type": "wonder", "auto_map": {"AutoConfig": "configuration_wonder.WonderConfig"}}
    (tmp_path / "config.json").write_text(json.dumps(own))
    with pytest.raises(StartupError, match="needs code from the checkpoint, which ebbtide does not execute"):
        load_runner(tmp_path)


def test_a_model_with_another_head_is_refused() -> None:
    config = FAMILIES["phi3"].config()
    with pytest.raises(StartupError, match="Phi3ForSequenceClassification is not supported: it is not a causal"):
        check_config("Phi3ForSequenceClassification", config)


def test_quantized_weights_are_refused() -> None:
    config = FAMILIES["phi3"].config()
    config.quantization_config = {"quant_method": "gptq", "bits": 4}
    with pytest.raises(StartupError, match="its weights are quantized"):
        check_config("Phi3ForCausalLM", config)


def test_a_mask_that_is_not_causal_is_refused(tmp_path: Path) -> None:
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    config = transformers.BertGenerationConfig(vocab_size=VOCAB_SIZE, **sizes)
    write(config, tmp_path)
    with pytest.raises(StartupError, match="BertGenerationDecoder is not supported: its attention is bidirectional"):
        load_family(tmp_path)


def test_a_checkpoint_without_all_weights_is_refused(tmp_path: Path) -> None:
    write(FAMILIES["phi3"].config(), tmp_path, leave_out="model.norm.weight")
    with pytest.raises(
        StartupError, match=r"Phi3ForCausalLM is not supported: the checkpoint lacks 'model\.norm\.weight'"
    ):
        load_family(tmp_path)


def test_a_folder_without_weights_is_refused(tmp_path: Path) -> None:
    config = FAMILIES["phi3"].config()
    config.architectures = ["Phi3ForCausalLM"]
    config.save_pretrained(tmp_path)
    with pytest.raises(StartupError, match=r"Phi3ForCausalLM could not be loaded through transformers: .*safetensors"):
        load_family(tmp_path)


def write(config: transformers.PretrainedConfig, folder: Path, *, leave_out: str = "") -> None:
    """A random checkpoint of a configuration that lacks one of its weights."""
    model = transformers.AutoModelForCausalLM.from_config(config)
    state = {name: tensor for name, tensor in model.state_dict().items() if name != leave_out}
    model.save_pretrained(folder, state_dict=state)
    write_tokenizer(folder)
