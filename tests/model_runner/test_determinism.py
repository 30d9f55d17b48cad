"""--deterministic: logits do not depend on the rest of the load, bit for bit, or the start is refused."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from ebbtide.config import RunnerConfig, SchedulerConfig
from ebbtide.errors import StartupError
from ebbtide.messages import GenerateReq, SamplingParams
from ebbtide.model_runner import build_runner
from ebbtide.model_runner.runner import ModelRunner
from ebbtide.progress import no_progress
from ebbtide.scheduler.build import build_scheduler
from ebbtide.tokenization.model_files import ModelFiles

from .driver import load_runner
from .families import FAMILIES, VOCAB_SIZE

Load = list[tuple[list[int], SamplingParams]]
ALONE = SchedulerConfig(disable_radix_cache=True, chunked_prefill_size=4096, memory_check="strict")
UNDER_PRESSURE = SchedulerConfig(chunked_prefill_size=24, test_retract_interval=3, memory_check="strict")


@dataclass
class Observed:
    """What the scheduler sent for a load: tokens and logits' log-probabilities per request, and how they came about."""

    answers: dict[str, list[Any]] = field(default_factory=dict)
    num_cached: int = 0
    num_retractions: int = 0


def observe(runner: ModelRunner, config: SchedulerConfig, load: Load, groups: Sequence[int]) -> Observed:
    """Run the requests on a new scheduler; those of a group together, and each group after the one before."""
    scheduler = build_scheduler(config, runner.info)
    observed = Observed()
    for group in sorted(set(groups)):
        members = [index for index, one in enumerate(groups) if one == group]
        messages = [GenerateReq((str(index),), load[index][0], load[index][1]) for index in members]
        scheduler.receive(messages, 0.0)
        while not scheduler.idle:
            plan = scheduler.next_step(0.0)
            if plan is not None:
                runner.submit(plan)
                scheduler.settle(runner.collect())
            for item in scheduler.take_output().items:
                answer = observed.answers.setdefault(item.rid, [])
                answer += zip(item.tokens, item.logprobs or [], strict=True)
                observed.num_cached += item.start.cached_tokens if item.start else 0
            scheduler.self_check_during_busy()
        scheduler.on_idle()
    observed.num_retractions = scheduler.state.metrics.totals["num_retracted_requests_total"]
    return observed


def random_load(seed: int, count: int) -> Load:
    """Greedy and sampled requests; many begin alike, so that a prefix cache is used."""
    source = Random(seed)
    stems = [[source.randrange(3, VOCAB_SIZE) for _ in range(40)] for _ in range(3)]
    load: Load = []
    for index in range(count):
        tail = [source.randrange(3, VOCAB_SIZE) for _ in range(source.randint(1, 50))]
        warmth = source.choice((0.0, 0.9))
        params = SamplingParams(max_tokens=source.randint(6, 20), temperature=warmth, seed=index, logprobs=3)
        load.append((source.choice(stems) + tail, params))
    return load


@pytest.mark.parametrize(("family", "kv_type"), [("llama", "auto"), ("qwen3", "auto"), ("llama", "int8")])
def test_logprobs_are_equal_alone_and_batched_cached_chunked_and_retracted(
    family: str, kv_type: str, tiny: Callable[[str], Path]
) -> None:
    runner = load_runner(tiny(family), dtype="bfloat16", deterministic=True, kv_cache_dtype=kv_type)
    assert runner.info.deterministic
    load = random_load(seed=5, count=12)
    alone = observe(runner, ALONE, load, range(12))
    assert (alone.num_cached, alone.num_retractions) == (0, 0)
    together = observe(runner, UNDER_PRESSURE, load, [index // 6 for index in range(12)])
    assert together.num_cached > 100
    assert together.num_retractions > 10
    assert together.answers == alone.answers


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"dtype": "float32"}, "the model runs in float32"),
        ({"dtype": "bfloat16", "attention_backend": "torch"}, "the model runs through torch"),
    ],
)
def test_other_code_is_refused(settings: dict[str, Any], reason: str, tiny: Callable[[str], Path]) -> None:
    assert not load_runner(tiny("llama"), **settings).info.deterministic
    with pytest.raises(
        StartupError, match=f"^--deterministic is not supported for llama.* with these settings: {reason}\\. "
    ):
        load_runner(tiny("llama"), deterministic=True, **settings)


def test_a_head_size_without_compiled_code_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "m"
    replace(FAMILIES["llama"], extra={"head_dim": 24}).model(seed=7).save_pretrained(folder)
    assert not load_runner(folder, dtype="bfloat16").info.deterministic
    with pytest.raises(StartupError, match="its head size is not a multiple of 16"):
        load_runner(folder, dtype="bfloat16", deterministic=True)


def test_the_simulated_model_is_deterministic() -> None:
    runner = build_runner(ModelFiles("sim"), RunnerConfig(deterministic=True), no_progress)
    assert runner.info.deterministic
