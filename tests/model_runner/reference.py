"""The results of transformers for a checkpoint, as a reference for the runner."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig, PreTrainedModel
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint


def load_reference(path: Path, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """The model of a Hugging Face folder or a GGUF file; EOS does not end its generation."""
    if path.suffix == ".gguf":
        model = _load_gguf(path, dtype)
    else:
        model = AutoModelForCausalLM.from_pretrained(path, dtype=dtype)
    model.generation_config = GenerationConfig(pad_token_id=0)
    return model.eval()


def greedy(model: PreTrainedModel, prompt: list[int], num_tokens: int, *, cache: bool = True) -> list[int]:
    """The next ``num_tokens`` most likely tokens. cache: False recomputes the whole text for each token."""
    ids = torch.tensor([prompt])
    with torch.inference_mode():
        out = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=num_tokens, do_sample=False, use_cache=cache
        )
    tokens: list[int] = out[0, len(prompt) :].tolist()
    return tokens


def _load_gguf(path: Path, dtype: torch.dtype) -> PreTrainedModel:
    """Uses transformers' GGUF reader; ``from_pretrained`` would require accelerate."""
    config = AutoConfig.from_pretrained(path.parent, gguf_file=path.name)
    model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    tensors = load_gguf_checkpoint(str(path), return_tensors=True, model_to_load=model, torch_dtype=dtype)["tensors"]
    missing, unexpected = model.load_state_dict(tensors, strict=False)
    assert set(missing) <= {"lm_head.weight"}
    assert not unexpected
    return model
