"""An exception or invalid logits in one row of a step end that row only."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from torch import Tensor

from ebbtide.messages import SamplingParams
from ebbtide.model_runner import runner as runner_module
from ebbtide.model_runner.kv.page_table import PageTable
from ebbtide.model_runner.runner import ModelRunner
from ebbtide.model_runner.sampling import sampler as sampler_module
from ebbtide.model_runner.sampling.prompt_logprobs import PendingPromptLogprobs
from ebbtide.model_runner.sampling.row_state import RowState
from ebbtide.model_runner.sampling.sampler import PendingLogprobs, Sampler
from ebbtide.plan import PlanItem, PromptLogprobSpec, RowInit, StepPlan, StepResult

from .driver import load_runner

PROMPTS = [[5, 6, 7], [8, 9, 10, 11], [12, 13]]
GUILTY = 1
# Every row uses penalties, log-probabilities of its output and prompt, a mask, and a random draw.
PARAMS = SamplingParams(
    max_tokens=9, temperature=0.8, seed=3, frequency_penalty=0.5, repetition_penalty=1.2, logprobs=2, prompt_logprobs=1
)
MASK = bytes([0xFF]) * 60 + bytes(4)  # ids below 480


@pytest.fixture
def runner(tiny: Callable[[str], Path]) -> ModelRunner:
    return load_runner(tiny("llama"), max_total_tokens=256, page_size=16)


def prefill(row: int) -> PlanItem:
    prompt = PROMPTS[row]
    init = RowInit(PARAMS, len(prompt), prompt)
    return PlanItem(row, 0, prompt, [row], 0, 1, init, MASK, PromptLogprobSpec(0, prompt[1:], 1))


def decode(row: int, index: int) -> PlanItem:
    return PlanItem(row, len(PROMPTS[row]) + index, None, mask=MASK)


def step(runner: ModelRunner, number: int, items: list[PlanItem]) -> StepResult:
    runner.submit(StepPlan(number, items))
    return runner.collect()


def play(runner: ModelRunner, rows: list[int], num_steps: int = 3) -> list[StepResult]:
    """A prefill of ``rows`` and decode steps."""
    first = step(runner, 0, [prefill(row) for row in rows])
    return [first, *(step(runner, index + 1, [decode(row, index) for row in rows]) for index in range(num_steps))]


def of_rows(results: list[StepResult], places: list[int]) -> list[Any]:
    """The tokens and log-probabilities of the samples at ``places``."""
    parts = []
    for result in results:
        assert result.logprobs is not None
        parts += [(result.tokens[place], [one.top_ids for one in result.logprobs[place] or ()]) for place in places]
    return parts


def raise_if(guilty: bool) -> None:
    if guilty:
        raise RuntimeError("seeded")


def patch(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, is_guilty: Callable[..., bool]) -> None:
    """Let a function raise, after its own work, for calls that concern the guilty row."""
    original = getattr(owner, name)

    def patched(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        raise_if(is_guilty(*args, **kwargs))
        return result

    monkeypatch.setattr(owner, name, patched)


def in_items(items: list[PlanItem]) -> bool:
    return any(item.row == GUILTY for item in items)


def has_prompt(tokens: list[int]) -> bool:
    return PROMPTS[GUILTY][0] in tokens


STAGES: dict[str, Callable[[pytest.MonkeyPatch, ModelRunner], None]] = {
    "page table": lambda m, r: patch(m, PageTable, "stage", lambda _, items: in_items(items)),
    "page table write": lambda m, r: patch(m, PageTable, "write", lambda _, w: bool((w.pages == GUILTY).any())),
    "row state": lambda m, r: patch(m, Sampler, "stage_row", lambda _, row, init: row == GUILTY),
    "row tensors": lambda m, r: patch(m, RowState, "build", lambda _, inputs, size: inputs.row == GUILTY),
    "tokens": lambda m, r: patch(m, runner_module, "stage_tokens", lambda items, size: in_items(items)),
    "sampling inputs": lambda m, r: patch(
        m, Sampler, "stage", lambda _, specs, num: any(spec.row == GUILTY for spec in specs)
    ),
    "grammar mask": lambda m, r: patch(
        m, sampler_module, "stage_masks", lambda masks, size: len(masks) > 2 or any(mask == b"" for mask in masks)
    ),
    "forward": lambda m, r: patch(m, r._model, "forward", lambda batch, _: GUILTY in batch.rows),
    "penalties": lambda m, r: patch(m, RowState, "adjust", lambda state, *_: state.prompt_len == len(PROMPTS[GUILTY])),
    "draw": lambda m, r: patch(m, Sampler, "sample", lambda _, logits, inputs: GUILTY in inputs.row_numbers),
    "prompt logprob targets": lambda m, r: patch(
        m, runner_module, "stage_targets", lambda specs, _: PROMPTS[GUILTY][1] in specs[0].targets or len(specs) > 1
    ),
    "prompt logprobs": lambda m, r: patch(
        m,
        runner_module,
        "compute_prompt_logprobs",
        lambda states, logits, specs, *_: any(PROMPTS[GUILTY][1] in spec.targets for spec in specs),
    ),
    "result": lambda m, r: patch(m, PendingLogprobs, "of", lambda _, sample: sample == GUILTY),
    "result of the prompt": lambda m, r: patch(m, PendingPromptLogprobs, "of", lambda _, place: place == GUILTY),
}


@pytest.mark.parametrize("stage", STAGES)
def test_an_exception_in_any_stage_fails_only_its_row(
    stage: str, runner: ModelRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = of_rows(play(runner, [0, 1, 2]), [0, 2])
    items = [prefill(row) for row in range(3)]
    if stage == "grammar mask":
        items[GUILTY] = replace(items[GUILTY], mask=b"")
    with monkeypatch.context() as seeded:
        STAGES[stage](seeded, runner)
        first = step(runner, 0, items)
    assert [(failure.item, failure.invalid_logits) for failure in first.failures] == [(GUILTY, False)]
    assert "seeded" in first.failures[0].problem
    assert first.tokens[GUILTY] == []
    rest = [step(runner, index + 1, [decode(row, index) for row in (0, 2)]) for index in range(3)]
    assert of_rows([first], [0, 2]) + of_rows(rest, [0, 1]) == expected
    assert step(runner, 9, [prefill(GUILTY)]).failures == []


def test_an_exception_of_the_whole_batch_fails_no_row(runner: ModelRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = of_rows(play(runner, [0, 1, 2]), [0, 1, 2])
    patch(monkeypatch, runner._model, "forward", lambda batch, _: len(batch.rows) > 1)
    results = play(runner, [0, 1, 2])
    assert all(not result.failures for result in results)
    assert of_rows(results, [0, 1, 2]) == expected


def test_a_device_error_is_raised(runner: ModelRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    def forward(*_: object) -> Tensor:
        raise torch.AcceleratorError("device-side assert", 710)

    monkeypatch.setattr(runner._model, "forward", forward)
    with pytest.raises(torch.AcceleratorError):
        runner.submit(StepPlan(0, [prefill(0), prefill(1)]))


# ---------------------------------------------------------------------- invalid logits


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("params", [PARAMS, SamplingParams(max_tokens=9, temperature=0.0)], ids=["all", "greedy"])
def test_invalid_logits_of_one_row_fail_only_it(
    value: float, params: SamplingParams, runner: ModelRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    items = [
        PlanItem(row, 0, PROMPTS[row], [row], 0, 1, RowInit(params, len(PROMPTS[row]), PROMPTS[row]))
        for row in range(3)
    ]
    clean = step(runner, 0, items)
    logits = runner._model.logits

    def spoiled(states: Tensor) -> Tensor:
        values = logits(states).clone()
        values[GUILTY] = value
        return values

    with monkeypatch.context() as seeded:
        seeded.setattr(runner._model, "logits", spoiled)
        result = step(runner, 1, items)
    assert [(failure.item, failure.invalid_logits) for failure in result.failures] == [(GUILTY, True)]
    assert result.tokens[GUILTY] == []
    assert [result.tokens[row] for row in (0, 2)] == [clean.tokens[row] for row in (0, 2)]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_one_invalid_logit_is_enough(value: float, runner: ModelRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    logits = runner._model.logits

    def spoiled(states: Tensor) -> Tensor:
        values = logits(states).clone()
        values[:, 500] = value  # outside the mask
        return values

    monkeypatch.setattr(runner._model, "logits", spoiled)
    items = [prefill(0), PlanItem(1, 0, PROMPTS[1], [1], 0, 1, RowInit(SamplingParams(9, 0.0), len(PROMPTS[1])))]
    assert [failure.invalid_logits for failure in step(runner, 0, items).failures] == [True, True]


def test_invalid_logits_before_a_prompt_token_fail_only_its_row(
    runner: ModelRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    logits = runner._model.logits

    def spoiled(states: Tensor) -> Tensor:
        values = logits(states).clone()
        if len(values) > 3:  # two and three and one prompt positions, in this order
            values[2] = float("nan")
        return values

    monkeypatch.setattr(runner._model, "logits", spoiled)
    result = step(runner, 0, [prefill(row) for row in range(3)])
    assert [(failure.item, failure.invalid_logits) for failure in result.failures] == [(1, True)]
    assert list(map(len, result.prompt_logprobs)) == [2, 0, 1]


# ---------------------------------------------------------------------- rows of the embedding without a token


@pytest.mark.parametrize("params", [PARAMS, SamplingParams(max_tokens=9, temperature=0.0)], ids=["all", "greedy"])
def test_ids_without_a_token_are_input_but_never_output(
    params: SamplingParams, runner: ModelRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    logits = runner._model.logits

    def tempting(states: Tensor) -> Tensor:
        values = logits(states).clone()
        values[:, 400:] += 1000
        return values

    monkeypatch.setattr(runner._model, "logits", tempting)
    prompt = [511, 5, 450]
    item = PlanItem(0, 0, prompt, [0], 0, 1, RowInit(params, len(prompt), prompt))
    assert step(runner, 0, [item]).tokens[0][0] >= 400
    runner.submit(StepPlan(1, [item], num_token_ids=400))
    result = runner.collect()
    assert not result.failures
    assert result.tokens[0][0] < 400
