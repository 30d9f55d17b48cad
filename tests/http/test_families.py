"""A daemon serves the folder of every supported family; its greedy tokens are those of transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from ebbtide.tokenization.model_files import ModelFiles
from ebbtide.tokenization.tokenizer import load_tokenizer

from ..model_runner.checkpoints import write_checkpoint
from ..model_runner.reference import greedy, load_reference

PROMPT = [17, 300, 45, 9, 120, 77, 451, 33, 260, 5, 88] * 5  # longer than the sliding window
NUM_TOKENS = 24
# Native code with a pool for the sliding window and with one for recurrent states; transformers with a window.
IN_EVERY_RUN = {"gemma3", "gpt_oss", "lfm2"}
FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3", "phi3", "gpt_neox", "gpt_oss", "lfm2")


@pytest.mark.parametrize(
    "family",
    [pytest.param(one, marks=() if one in IN_EVERY_RUN else pytest.mark.soak) for one in FAMILIES],
)
def test_a_tiny_checkpoint_is_served_as_transformers_runs_it(family: str, tmp_path: Path, start_daemon: Any) -> None:
    folder = write_checkpoint(tmp_path / family, family)
    pieces = load_tokenizer(ModelFiles(family, str(folder))).vocabulary.pieces
    daemon = start_daemon("--dtype", "float32", "--max-total-tokens", "1024", model=str(folder))
    fields = {"max_tokens": NUM_TOKENS, "temperature": 0, "ignore_eos": True, "logprobs": 0}
    reply = httpx.post(f"{daemon.url}/v1/completions", json={"prompt": PROMPT, **fields}, timeout=60)
    assert reply.status_code == 200, reply.text
    names = [_name(piece) for piece in pieces]
    assert len(set(names)) == len(names)
    expected = greedy(load_reference(folder), PROMPT, NUM_TOKENS)
    assert reply.json()["choices"][0]["logprobs"]["tokens"] == [names[token] for token in expected]
    assert len(set(expected)) > 4


def _name(piece: bytes) -> str:
    """The name of a token in the completions API."""
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{value:02x}" for value in piece)
