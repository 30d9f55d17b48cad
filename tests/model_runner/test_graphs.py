"""Decode graphs on the CPU: a capture is a closure over the static tensors."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from ebbtide.config import RunnerConfig
from ebbtide.messages import SamplingParams
from ebbtide.model_runner.cuda_graphs import choose_graphs
from ebbtide.model_runner.graphs import DecodeInputs, graph_sizes
from ebbtide.model_runner.runner import ModelRunner
from ebbtide.plan import PlanItem, RowInit, StepPlan

from .driver import Driver, load_runner, load_with_graphs

MAX_ROWS = 12
NAN = float("nan")


class Closures:
    """Captures a graph as a closure. Before each replay, all values that only padding may use are overwritten."""

    def __init__(self) -> None:
        self.runner: ModelRunner | None = None
        self.sizes: list[int] = []

    def __call__(self, compute: Callable[[], None]) -> Callable[[], None]:
        assert isinstance(compute, partial)
        [inputs] = compute.args

        def replay() -> None:
            if self.runner is not None:
                poison(self.runner, inputs)
                self.sizes.append(len(inputs.rows))
            compute()

        return replay


def poison(runner: ModelRunner, inputs: DecodeInputs) -> None:
    """Change what the padding rows read: their page, tokens, sampling parameters and last samples."""
    graphs: Any = runner._graphs
    attention: Any = runner._attention
    for pool in attention.pools:
        if pool.shape.num_layers:
            pool.data.flatten(0, 1).view(2 * pool.shape.num_layers, pool.num_pages, -1)[:, -1] = NAN
    padding = inputs.rows == graphs.parts.padding_row
    inputs.token_ids[padding] = 77
    inputs.is_own[padding] = torch.arange(int(padding.sum())) % 2 == 0
    graphs.parts.last_tokens[-1] = 99
    inputs.draws.temperatures[padding] = 0.5
    inputs.draws.shares[padding] = 0.1


def graph_runner(path: Path, **options: object) -> tuple[ModelRunner, Closures]:
    """A float32 runner with decode graphs."""
    closures = Closures()
    runner = load_with_graphs(path, closures, attention_backend="cpu", max_running_requests=MAX_ROWS, **options)
    closures.runner = runner
    return runner, closures


def prompts() -> list[list[int]]:
    """One prompt per row. The rows start and end in different steps."""
    return [[3 + (row * 50 + place * 37) % 500 for place in range(3 + 5 * row)] for row in range(MAX_ROWS)]


def random_params(row: int) -> SamplingParams:
    """Greedy and random rows with every parameter that a graph supports."""
    kinds: list[dict[str, Any]] = [{"top_k": 20}, {"top_p": 0.7}, {"min_p": 0.05}, {"top_k": 9, "top_p": 0.5}, {}]
    temperature = 0.0 if row % 3 == 0 else 1.3
    return SamplingParams(max_tokens=6 + 2 * row, temperature=temperature, seed=row, **kinds[row % 5])


def special_params(row: int) -> SamplingParams:
    """Rows of which some have a parameter that a graph does not support."""
    kinds: list[dict[str, Any]] = [
        {"repetition_penalty": 1.4},
        {"presence_penalty": 0.9, "frequency_penalty": 0.4},
        {"logit_bias": {5: 3.0}},
        {"min_tokens": 8},
        {"logprobs": 3},
        {},
    ]
    return SamplingParams(max_tokens=6 + 2 * row, temperature=1.0, seed=row, **kinds[row % 6])


@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("params", [random_params, special_params])
def test_graphs_of_all_sizes_give_the_tokens_of_single_launches(
    params: Callable[[int], SamplingParams], page_size: int, tiny: Callable[[str], Path]
) -> None:
    sampling = [params(row) for row in range(MAX_ROWS)]
    runner, closures = graph_runner(tiny("qwen3"), page_size=page_size)
    plain = load_runner(tiny("qwen3"), page_size=page_size, attention_backend="cpu", max_running_requests=MAX_ROWS)
    found, expected = (Driver(each, chunk=40).run(prompts(), sampling) for each in (runner, plain))
    assert [one.outputs for one in found] == [one.outputs for one in expected]
    for mine, its in zip(found, expected, strict=True):
        for entry, other in zip(mine.logprobs, its.logprobs, strict=True):
            assert (entry is None) is (other is None)
            if entry is not None and other is not None:
                assert entry.top_ids == other.top_ids
                assert entry.logprob == pytest.approx(other.logprob, abs=1e-5)
    assert set(closures.sizes) == set(graph_sizes(MAX_ROWS))


@pytest.mark.parametrize("family", ["mistral", "gemma3"])
def test_graphs_over_a_window_pool_give_the_tokens_of_single_launches(family: str, tiny: Callable[[str], Path]) -> None:
    """In Mistral's configuration all layers have a window, so the first pool has no memory."""
    sampling = [random_params(row) for row in range(MAX_ROWS)]
    runner, closures = graph_runner(tiny(family), page_size=8)
    plain = load_runner(tiny(family), page_size=8, attention_backend="cpu", max_running_requests=MAX_ROWS)
    assert len(runner.info.pools) == 2
    assert Driver(runner, chunk=40).generate(prompts(), sampling) == Driver(plain, chunk=40).generate(
        prompts(), sampling
    )
    assert closures.sizes


def test_given_tokens_and_masks_work_in_a_graph(tiny: Callable[[str], Path]) -> None:
    runner, closures = graph_runner(tiny("llama"))
    plain = load_runner(tiny("llama"), attention_backend="cpu", max_running_requests=MAX_ROWS)
    greedy = RowInit(SamplingParams(max_tokens=9, temperature=0.0), 5)
    start = [PlanItem(row, 0, [7, 8, 9, 10, 11 + row], [row], 0, True, greedy) for row in range(3)]
    allowed = bytes([0, 0, 0xF0] + [0] * 61)
    step = [PlanItem(0, 5, [300]), PlanItem(1, 5, None, mask=allowed), PlanItem(2, 5, None, mask=bytes(64))]
    later = [PlanItem(0, 6, None), PlanItem(1, 6, None)]
    results = []
    for each in (runner, plain):
        tokens = []
        for items in (start, step, later):
            each.submit(StepPlan(0, items, num_token_ids=400))
            tokens.append(each.collect().tokens)
        results.append(tokens)
    assert results[0] == results[1]
    assert 20 <= results[0][1][1][0] <= 23
    assert results[0][1][2] == []
    assert closures.sizes == [4, 2]


def test_ids_without_a_token_are_not_sampled_in_a_graph(tiny: Callable[[str], Path]) -> None:
    runner, closures = graph_runner(tiny("llama"))
    init = RowInit(SamplingParams(max_tokens=9, temperature=3.0, seed=3), 2)
    runner.submit(StepPlan(0, [PlanItem(0, 0, [7, 8], [0], 0, True, init)], num_token_ids=10))
    runner.collect()
    for number in range(10):
        runner.submit(StepPlan(0, [PlanItem(0, 2 + number, None)], num_token_ids=10))
        [[token]] = runner.collect().tokens
        assert token < 10
    assert closures.sizes == [1] * 10


def test_invalid_logits_in_a_graph_fail_their_item_only(tiny: Callable[[str], Path]) -> None:
    runner, closures = graph_runner(tiny("llama"))
    init = RowInit(SamplingParams(max_tokens=9, temperature=0.0), 2)
    runner.submit(StepPlan(0, [PlanItem(row, 0, [7, 8], [row], 0, True, init) for row in range(3)]))
    runner.collect()
    attention: Any = runner._attention
    attention.pool.keys(0)[16] = NAN  # the first token of page 1
    runner.submit(StepPlan(1, [PlanItem(row, 2, None) for row in range(3)]))
    result = runner.collect()
    assert [len(tokens) for tokens in result.tokens] == [1, 0, 1]
    assert [(failure.item, failure.invalid_logits) for failure in result.failures] == [(1, True)]
    assert closures.sizes == [4]


def test_the_page_and_the_row_of_padding_are_in_no_plan(tiny: Callable[[str], Path]) -> None:
    runner, _ = graph_runner(tiny("llama"), max_total_tokens=64, page_size=16)
    init = RowInit(SamplingParams(max_tokens=9, temperature=0.0), 2)
    assert runner.info.num_pages == 4
    for item in (PlanItem(0, 0, [7, 8], [4], 0, True, init), PlanItem(MAX_ROWS, 0, [7, 8], [0], 0, True, init)):
        runner.submit(StepPlan(0, [item]))
        [failure] = runner.collect().failures
        assert not failure.invalid_logits


@pytest.mark.parametrize("largest", [1, 2, 3, 8, 63, 64, 200, 256, 1000])
def test_padding_is_less_than_half_of_a_graph(largest: int) -> None:
    sizes = graph_sizes(largest)
    assert sizes == tuple(sorted(set(sizes)))
    assert sizes[-1] == largest
    for rows in range(1, largest + 1):
        assert min(size for size in sizes if size >= rows) <= max(2 * rows - 1, 1)


@pytest.mark.parametrize(
    ("options", "can_capture", "is_capturable", "backend", "sizes", "reason"),
    [
        ({}, True, True, "triton", graph_sizes(256), "--max-running-requests"),
        ({"cuda_graph_max_bs": 7}, True, True, "flash_attn", (1, 2, 4, 7), "--cuda-graph-max-bs"),
        ({"cuda_graph_max_bs": 7, "max_running_requests": 3}, True, True, "triton", (1, 2, 3), "running-requests"),
        ({"disable_cuda_graph": True}, True, True, "triton", (), "--disable-cuda-graph"),
        ({}, True, True, "torch", (), "torch cannot be captured"),
        ({}, True, False, "triton", (), "through transformers"),
        ({}, False, True, "triton", (), "only CUDA"),
    ],
)
def test_graphs_are_chosen_from_flags_model_and_backend(
    options: dict[str, Any], can_capture: bool, is_capturable: bool, backend: str, sizes: tuple[int, ...], reason: str
) -> None:
    choice = choose_graphs(RunnerConfig(**options), backend, can_capture=can_capture, is_capturable=is_capturable)
    assert choice.sizes == sizes
    assert reason in choice.reason
