"""Log-probabilities of prompt tokens equal those of transformers for all chunk sizes, batches and slices."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

from ebbtide.messages import SamplingParams, TokenLogprob
from ebbtide.model_runner.runner import ModelRunner
from ebbtide.model_runner.sampling import prompt_logprobs
from ebbtide.paging import pages_for
from ebbtide.plan import PlanItem, PromptLogprobSpec, RowInit, StepPlan

from ..driver import load_runner, page_writes
from ..families import VOCAB_SIZE
from ..reference import load_reference

NUM_TOP = 4
PARAMS = SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=NUM_TOP)


def prompts() -> list[list[int]]:
    generator = torch.Generator().manual_seed(11)
    return [torch.randint(3, VOCAB_SIZE, (size,), generator=generator).tolist() for size in (2, 17, 40)]


def logprobs_of(runner: ModelRunner, rows: list[list[int]], chunk: int) -> list[list[TokenLogprob]]:
    """Run all prompts together, with ``chunk`` tokens of each per step."""
    size = runner.info.page_size
    found: list[list[TokenLogprob]] = [[] for _ in rows]
    per_row = pages_for(max(map(len, rows)), size)
    for start in range(0, max(map(len, rows)), chunk):
        items, who = [], []
        for row, prompt in enumerate(rows):
            tokens, targets = prompt[start : start + chunk], prompt[start + 1 : start + chunk + 1]
            if not tokens:
                continue
            pages = [row * per_row + page for page in range(per_row)] if start == 0 else []
            init = RowInit(PARAMS, len(prompt)) if start == 0 else None
            spec = PromptLogprobSpec(0, targets, NUM_TOP) if targets else None
            samples = start + len(tokens) == len(prompt)
            more = page_writes(runner, pages)
            item = PlanItem(row, start, tokens, pages, 0, samples, init, prompt_logprobs=spec, more_pages=more)
            items.append(item)
            who += [row] if targets else []
        runner.submit(StepPlan(start, items))
        for row, part in zip(who, runner.collect().prompt_logprobs, strict=True):
            found[row] += part
    return found


def check(model: PreTrainedModel, prompt: list[int], found: list[TokenLogprob]) -> None:
    """Values are equal to 1e-3, and the ids of the most likely tokens belong to their values."""
    with torch.inference_mode():
        values = model(torch.tensor([prompt])).logits[0].float().log_softmax(-1)
    assert len(found) == len(prompt) - 1
    for place, (token, entry) in enumerate(zip(prompt[1:], found, strict=True)):
        assert entry.logprob == pytest.approx(float(values[place, token]), abs=1e-3)
        assert entry.top_logprobs == pytest.approx(values[place].topk(len(entry.top_ids)).values.tolist(), abs=1e-3)
        assert entry.top_logprobs == pytest.approx(values[place][entry.top_ids].tolist(), abs=1e-3)
        assert entry.rank is not None
        by_rank = float(values[place].sort(descending=True).values[entry.rank - 1])
        assert by_rank == pytest.approx(entry.logprob, abs=1e-3)
        assert (token in entry.top_ids) is (entry.rank <= len(entry.top_ids))


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma2", "gpt2"])
@pytest.mark.parametrize("chunk", [5, 64])
def test_prompt_logprobs_are_those_of_transformers(
    family: str, chunk: int, tiny: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prompt_logprobs, "SLICE_BYTES", 4 * VOCAB_SIZE * 7)
    model = load_reference(tiny(family))
    runner = load_runner(tiny(family))
    for prompt, found in zip(prompts(), logprobs_of(runner, prompts(), chunk), strict=True):
        check(model, prompt, found)


def test_prompt_logprobs_of_smollm2_are_those_of_transformers(
    smollm2: Path, smollm2_reference: PreTrainedModel
) -> None:
    generator = torch.Generator().manual_seed(3)
    prompt = torch.randint(20, 49_000, (180,), generator=generator).tolist()
    check(smollm2_reference, prompt, logprobs_of(load_runner(smollm2), [prompt], 100)[0])


def test_no_alternatives_and_different_numbers_of_them(tiny: Callable[[str], Path]) -> None:
    runner = load_runner(tiny("llama"))
    [a, b] = prompts()[1:]
    items = [
        PlanItem(0, 0, a, [0, 1], 0, True, RowInit(PARAMS, len(a)), prompt_logprobs=PromptLogprobSpec(3, a[4:], 0)),
        PlanItem(
            1, 0, b, [2, 3, 4], 0, False, RowInit(PARAMS, len(b)), prompt_logprobs=PromptLogprobSpec(0, b[1:9], 2)
        ),
    ]
    runner.submit(StepPlan(0, items))
    first, second = runner.collect().prompt_logprobs
    assert [len(entry.top_ids) for entry in first] == [0] * len(a[4:])
    assert [len(entry.top_ids) for entry in second] == [2] * 8
    alone = logprobs_of(runner, [a], 64)[0][3:]
    assert [entry.logprob for entry in alone] == pytest.approx([entry.logprob for entry in first], abs=1e-4)


@pytest.mark.parametrize(
    "spec", [PromptLogprobSpec(0, [VOCAB_SIZE], 1), PromptLogprobSpec(2, [1, 1], 1), PromptLogprobSpec(-1, [1], 1)]
)
def test_an_impossible_spec_is_refused(spec: PromptLogprobSpec, tiny: Callable[[str], Path]) -> None:
    runner = load_runner(tiny("llama"))
    runner.submit(StepPlan(0, [PlanItem(0, 0, [1, 2, 3], [0], 0, True, RowInit(PARAMS, 3), prompt_logprobs=spec)]))
    result = runner.collect()
    assert (result.tokens, result.prompt_logprobs) == ([[]], [[]])
    assert [failure.item for failure in result.failures] == [0]
