"""Host pages in pinned memory: copies are queued between forwards and must keep their order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from ebbtide.messages import SamplingParams
from ebbtide.model_runner.runner import ModelRunner
from ebbtide.plan import PageCopies, PlanItem, RowInit, StepPlan
from ebbtide.tokenization.model_files import smollm2_path

from ..model_runner.driver import load_runner

pytestmark = pytest.mark.gpu
needs_smollm2 = pytest.mark.skipif(not smollm2_path().is_file(), reason="the default model is not on this machine")
SAMPLING = SamplingParams(max_tokens=20, temperature=0.0, logprobs=20)
PROMPT = [3 + place * 37 % 40_000 for place in range(150)]
HERE, THERE, ELSEWHERE = list(range(10)), list(range(19, 9, -1)), list(range(31, 51, 2))


def pairs(sources: list[int], targets: list[int]) -> list[int]:
    return [page for pair in zip(sources, targets, strict=True) for page in pair]


def prefill(row: int, prompt: list[int], pages: list[int]) -> PlanItem:
    return PlanItem(row, 0, prompt, pages, 0, True, RowInit(SAMPLING, len(prompt), prompt))


def decodes(row: int, pages: list[int], first: int, init: RowInit | None) -> Iterator[PlanItem]:
    yield PlanItem(row, len(PROMPT), [first], pages, 0, True, init)
    for number in range(1, 8):
        yield PlanItem(row, len(PROMPT) + number, None)


def results(runner: ModelRunner, plans: list[StepPlan]) -> list[tuple[Any, object]]:
    """The results of all plans, run with two in flight."""
    found = []
    for number, plan in enumerate(plans):
        runner.submit(plan)
        if number:
            found.append(runner.collect())
    found.append(runner.collect())
    return [(one.tokens, one.logprobs) for one in found]


@needs_smollm2
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_a_request_restored_from_the_host_continues_bit_for_bit(dtype: str) -> None:
    runner = load_runner(smollm2_path(), device="cuda", dtype=dtype, attention_backend="triton", kv_offload_gb=0.25)
    info = runner.info
    assert 0 < info.restore_token_s < 0.01
    assert 0 < info.recompute_token_s < 0.01
    [(tokens, _)] = results(runner, [StepPlan(0, [prefill(0, PROMPT, HERE)])])
    [[first]] = tokens
    init = RowInit(SAMPLING, len(PROMPT), [*PROMPT, first])
    expected = results(runner, [StepPlan(0, [item]) for item in decodes(0, HERE, first, None)])
    back = [StepPlan(0, [item]) for item in decodes(2, ELSEWHERE, first, init)]
    back[0] = StepPlan(0, back[0].items, PageCopies(to_device=pairs(THERE, ELSEWHERE)))
    plans = [
        StepPlan(0, [prefill(0, PROMPT, HERE)]),
        StepPlan(0, [prefill(1, PROMPT[::-1], HERE)], PageCopies(to_host=pairs(HERE, THERE))),
        *back,
    ]
    assert results(runner, plans)[2:] == expected
