"""Runs requests through the scheduler on a real runner. Freed pages are overwritten with NaN in every pool."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ebbtide.config import SchedulerConfig
from ebbtide.messages import GenerateReq, SamplingParams
from ebbtide.model_runner.runner import ModelRunner
from ebbtide.plan import PageCopies, StepPlan
from ebbtide.scheduler.build import Extras, build_scheduler

MAX_STEPS = 3000


@dataclass
class Outcome:
    """The result of a load.

    Attributes:
        tokens: the output of each request, in order.
        num_freed: pool → number of pages that became free while requests were running.
    """

    tokens: list[list[int]] = field(default_factory=list)
    logprobs: list[list[Any]] = field(default_factory=list)
    num_cached: int = 0
    num_retractions: int = 0
    num_restored: int = 0
    num_freed: Counter[str] = field(default_factory=Counter)


def serve(
    runner: ModelRunner, config: SchedulerConfig, prompts: Sequence[list[int]], params: SamplingParams
) -> Outcome:
    """Run all prompts together on a new scheduler, and check the accounting after every step."""
    outcome = Outcome([[] for _ in prompts], [[] for _ in prompts])
    pools = runner.info.pools
    freed: list[set[int]] = [set() for _ in pools]
    extras = Extras(on_free={pool.name: pages.update for pool, pages in zip(pools, freed, strict=True)})
    scheduler = build_scheduler(config, runner.info, extras)
    _poison_everything(runner)
    scheduler.receive([GenerateReq((str(index),), prompt, params) for index, prompt in enumerate(prompts)], 0.0)
    steps = 0
    while not scheduler.idle:
        assert (steps := steps + 1) < MAX_STEPS, "the load does not end"
        plan = scheduler.next_step(0.0)
        if plan is not None:
            outcome.num_freed.update({pool.name: len(pages) for pool, pages in zip(pools, freed, strict=True)})
            _poison(runner, freed, plan)
            runner.submit(plan)
            result = runner.collect()
            assert not result.failures, result.failures
            scheduler.settle(result)
        for item in scheduler.take_output().items:
            outcome.tokens[int(item.rid)] += item.tokens
            outcome.logprobs[int(item.rid)] += item.logprobs or []
            outcome.num_cached += item.start.cached_tokens if item.start else 0
        scheduler.self_check_during_busy()
    scheduler.on_idle()
    outcome.num_restored = scheduler.state.metrics.totals["kv_restored_tokens_total"]
    outcome.num_retractions = scheduler.state.metrics.totals["num_retracted_requests_total"]
    return outcome


def _poison(runner: ModelRunner, freed: list[set[int]], plan: StepPlan) -> None:
    """Overwrite the pages freed since the last plan, except those that ``plan`` still copies to the host."""
    attention: Any = runner._attention
    copies = plan.copies or PageCopies()
    kept = {0: copies.to_host[::2]} | {part.pool: part.to_host[::2] for part in copies.more_pools}
    for number, (pool, pages) in enumerate(zip(attention.pools, freed, strict=True)):
        gone = torch.tensor(sorted(pages.difference(kept.get(number, []))), dtype=torch.int64)
        slots = gone[:, None] * pool.page_size + torch.arange(pool.page_size)
        pool.data[:, :, slots.flatten()] = torch.nan
        pages.clear()


def _poison_everything(runner: ModelRunner) -> None:
    attention: Any = runner._attention
    for pool in attention.pools:
        pool.data.fill_(torch.nan)
