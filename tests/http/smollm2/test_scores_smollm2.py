"""Log-likelihoods of SmolLM2 over HTTP, requested as by evaluation harnesses, equal those of transformers."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
import torch
from transformers import AutoTokenizer

from ebbtide.tokenization.model_files import smollm2_path
from ebbtide.tokenization.tokenizer import FastTokenizer
from ebbtide.tokenization.transformers_tokenizer import parts_of

from ...model_runner.reference import load_reference

PAIRS = [
    ("The capital of France is", " Paris"),
    ("The capital of France is", " a river"),
    ("Water boils at", " 100 degrees Celsius."),
    ("Das Meer hat Gezeiten, weil der Mond", " es anzieht. 🌊🌙"),
    ("请用中文介绍一下", "月亮。"),
    ("def merge(left, right):\n", "    result = []\n    while left and right:\n"),
    ("e\u0301te\u0301, nin\u0303o,", " cafe\u0301"),
    ("Once upon a time " * 40, "there was a tide."),
]


def encoded(tokenizer: FastTokenizer) -> list[tuple[list[int], list[int]]]:
    """Context and continuation, as ids."""
    return [tuple(tokenizer.encode(t, add_special_tokens=False) for t in pair) for pair in PAIRS]  # type: ignore[misc]


@pytest.mark.soak
def test_loglikelihoods_are_those_of_transformers(start_daemon: Any) -> None:
    path = smollm2_path()
    tokenizer = FastTokenizer(parts_of(AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)))
    pairs = encoded(tokenizer)
    model = load_reference(path)
    flags = ("--dtype", "float32", "--max-total-tokens", "2048", "--chunked-prefill-size", "64")
    daemon = start_daemon(*flags, model="smollm2")
    prompts = [context + continuation for context, continuation in pairs]
    with httpx.Client(base_url=daemon.url, timeout=300) as http:
        fields = {"prompt": prompts, "max_tokens": 0, "echo": True, "logprobs": 1, "temperature": 0}
        body = http.post("/v1/completions", json=fields).json()
        wide = http.post("/v1/completions", json={"prompt": prompts[3], "max_tokens": 1, "prompt_logprobs": 5}).json()
    assert body["usage"]["prompt_tokens"] == sum(map(len, prompts))
    for choice, prompt, (context, continuation) in zip(body["choices"], prompts, pairs, strict=True):
        with torch.inference_mode():
            values = model(torch.tensor([prompt])).logits[0].float().log_softmax(-1)
        right = [float(values[place, token]) for place, token in enumerate(prompt[1:])]
        lists = choice["logprobs"]
        assert lists["token_logprobs"][0] is None
        assert lists["token_logprobs"][1:] == pytest.approx(right, abs=1e-3)
        found = lists["token_logprobs"][len(context) :]
        greedy = values.argmax(-1)[len(context) - 1 : -1].tolist() == continuation
        tops = lists["top_logprobs"][len(context) :]
        assert all(value == max(top.values()) for value, top in zip(found, tops, strict=True)) is greedy
        assert choice["text"] == bytes(b"".join(tokenizer.vocabulary.pieces[t] for t in prompt)).decode()
    with torch.inference_mode():
        values = model(torch.tensor([prompts[3]])).logits[0].float().log_softmax(-1)
    for place, entry in enumerate(wide["choices"][0]["prompt_logprobs"][1:]):
        for key, one in entry.items():
            assert one["logprob"] == pytest.approx(float(values[place, int(key)]), abs=1e-3)
            assert float(values[place].sort(descending=True).values[one["rank"] - 1]) == pytest.approx(
                one["logprob"], abs=1e-3
            )
