"""Stands in for the package of this name, which is large: a model whose vectors are the length of a text and 1.

A token is a byte. The text "stall" is never computed.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from numpy.typing import NDArray


class Tokenizer:
    model_max_length = 16

    def __call__(self, text: str, **_: Any) -> dict[str, list[int]]:
        return {"input_ids": list(text.encode())}

    def __len__(self) -> int:
        return 256


class SentenceTransformer:
    max_seq_length = 16
    default_prompt_name = None
    prompts: dict[str, str] = {}  # noqa: RUF012 (as in the package)

    def __init__(self, folder: str, device: str) -> None:
        self.tokenizer = Tokenizer()

    def __getitem__(self, place: int) -> object:
        return object()

    def encode(self, texts: list[str], **_: Any) -> NDArray[np.float64]:
        while "stall" in texts:
            time.sleep(0.05)
        return np.array([[len(text), 1.0] for text in texts])
