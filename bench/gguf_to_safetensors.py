"""Write a GGUF file of the Llama family as a folder of safetensors in bfloat16, for servers that read no GGUF.

python bench/gguf_to_safetensors.py FILE FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint


def read_model(file: Path, dtype: torch.dtype) -> Any:
    """Return transformers' model with the dequantized weights of a GGUF file.

    Raises ValueError if the file has tensors that the model does not have.
    """
    config = AutoConfig.from_pretrained(file.parent, gguf_file=file.name)
    model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    tensors = load_gguf_checkpoint(str(file), return_tensors=True, model_to_load=model, torch_dtype=dtype)
    unknown = model.load_state_dict(tensors["tensors"], strict=False).unexpected_keys
    if unknown:
        raise ValueError(f"{file} has tensors that the model does not have: {unknown}")
    model.tie_weights()
    return model.eval()


def main() -> None:
    """Convert."""
    file, folder = Path(sys.argv[1]), sys.argv[2]
    read_model(file, torch.bfloat16).save_pretrained(folder)
    AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name).save_pretrained(folder)


if __name__ == "__main__":
    main()
