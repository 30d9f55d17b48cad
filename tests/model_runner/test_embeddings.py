"""Embeddings of the runner: the final hidden state of the last token, as transformers computes it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel

from ebbtide.messages import SamplingParams
from ebbtide.model_runner.runner import ModelRunner
from ebbtide.plan import PlanItem, PromptLogprobSpec, RowInit, StepPlan

from .driver import load_runner, page_writes
from .reference import load_reference
from .test_runner import random_prompts

EMBEDDING = SamplingParams(max_tokens=0, embedding=True)
Vector = NDArray[np.float32]


def expected(model: PreTrainedModel, prompt: list[int]) -> Vector:
    """The normalized last hidden state of a prompt."""
    with torch.inference_mode():
        states = model(torch.tensor([prompt]), output_hidden_states=True).hidden_states[-1][0, -1].float()
    vector: Vector = torch.nn.functional.normalize(states, dim=0).numpy()
    return vector


def pages(row: int, length: int) -> list[int]:
    """Pages of 16 tokens of a row of at most 96 tokens."""
    return [row * 6 + number for number in range(-(-length // 16))]


def embed(runner: ModelRunner, prompts: list[list[int]], chunk: int = 96) -> list[Vector]:
    """The vectors of prompts, chunk by chunk and all together."""
    found: dict[int, Vector] = {}
    for start in range(0, max(map(len, prompts)), chunk):
        items = []
        for row, prompt in enumerate(prompts):
            if start < len(prompt):
                end = min(start + chunk, len(prompt))
                init = RowInit(EMBEDDING, len(prompt)) if not start else None
                numbers = pages(row, len(prompt)) if not start else []
                last = end == len(prompt)
                more = page_writes(runner, numbers)
                items.append(PlanItem(row, start, prompt[start:end], numbers, 0, 0, init, embeds=last, more_pages=more))
        runner.submit(StepPlan(start, items))
        result = runner.collect()
        assert (result.failures, result.tokens) == ([], [])
        rows = [item.row for item in items if item.embeds]
        vectors = [np.frombuffer(data, "<f4") for data in result.embeddings]
        found |= dict(zip(rows, vectors, strict=True))
    return [found[row] for row in range(len(prompts))]


@pytest.mark.parametrize("family", ["llama", "qwen3", "gpt2", "gemma3"])
def test_an_embedding_is_the_last_hidden_state_of_transformers(family: str, tiny: Callable[[str], Path]) -> None:
    runner, model = load_runner(tiny(family)), load_reference(tiny(family))
    prompts = random_prompts()
    for chunk in (96, 10):
        for prompt, vector in zip(prompts, embed(runner, prompts, chunk), strict=True):
            assert np.linalg.norm(vector) == pytest.approx(1, abs=1e-5)
            assert np.abs(vector - expected(model, prompt)).max() < 1e-4


def test_the_compiled_code_gives_the_same_bits_alone_in_a_batch_and_in_chunks(tiny: Callable[[str], Path]) -> None:
    runner = load_runner(tiny("llama"), dtype="bfloat16")
    model = load_reference(tiny("llama"), torch.bfloat16)
    prompts = random_prompts()
    together = embed(runner, prompts)
    for prompt, vector, chunked in zip(prompts, together, embed(runner, prompts, 7), strict=True):
        [alone] = embed(runner, [prompt])
        assert (alone == vector).all()
        assert (alone == chunked).all()
        assert float(alone @ expected(model, prompt)) > 0.99


def test_embeddings_samples_and_scores_share_a_step(tiny: Callable[[str], Path]) -> None:
    runner = load_runner(tiny("llama"))
    prompts = random_prompts((12, 7, 9))
    greedy = SamplingParams(max_tokens=3, temperature=0.0)
    spec = PromptLogprobSpec(0, prompts[2][1:], 1)
    items = [
        PlanItem(0, 0, prompts[0], pages(0, 12), 0, 0, RowInit(EMBEDDING, 12), embeds=True),
        PlanItem(1, 0, prompts[1], pages(1, 7), 0, 1, RowInit(greedy, 7)),
        PlanItem(2, 0, prompts[2], pages(2, 9), 0, 1, RowInit(greedy, 9), prompt_logprobs=spec),
    ]
    runner.submit(StepPlan(0, items))
    together = runner.collect()
    alone: list[Any] = []
    for item in items:
        runner.submit(StepPlan(1, [item]))
        alone.append(runner.collect())
    assert np.allclose(np.frombuffer(together.embeddings[0], "<f4"), np.frombuffer(alone[0].embeddings[0], "<f4"))
    assert together.tokens == [alone[1].tokens[0], alone[2].tokens[0]]
    for one, other in zip(together.prompt_logprobs[0], alone[2].prompt_logprobs[0], strict=True):
        assert one.logprob == pytest.approx(other.logprob, abs=1e-4)


def test_a_state_that_is_not_a_number_fails_its_item_only(tiny: Callable[[str], Path]) -> None:
    runner = load_runner(tiny("llama"))
    prompts = random_prompts((12, 7))
    model: Any = runner._model
    hidden = model.hidden

    def with_nan(states: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = hidden(states).clone()
        found[0, 3] = float("nan")
        return found

    model.hidden = with_nan
    items = [
        PlanItem(row, 0, prompt, pages(row, len(prompt)), 0, 0, RowInit(EMBEDDING, len(prompt)), embeds=True)
        for row, prompt in enumerate(prompts)
    ]
    runner.submit(StepPlan(0, items))
    result = runner.collect()
    assert [(failure.item, failure.invalid_logits) for failure in result.failures] == [(0, True)]
    assert [bool(data) for data in result.embeddings] == [False, True]
