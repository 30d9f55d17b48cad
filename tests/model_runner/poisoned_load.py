"""Runs requests through the scheduler on a real runner. Freed pages are overwritten with NaN in every pool."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

import torch

from ebbtide.config import SchedulerConfig
from ebbtide.messages import GenerateReq, SamplingParams, ToScheduler
from ebbtide.model_runner.runner import ModelRunner
from ebbtide.plan import PageCopies, StepPlan
from ebbtide.scheduler.build import Extras, build_scheduler

MAX_STEPS = 3000


class PoisonedLoad:
    """A new scheduler for a runner. The accounting is checked after every step.

    Attributes:
        tokens, logprobs, prompt_logprobs: the outputs by request id.
        num_freed: pool → number of pages that became free before a plan.
    """

    def __init__(self, runner: ModelRunner, config: SchedulerConfig) -> None:
        self._runner = runner
        names = [pool.name for pool in runner.info.pools]
        self._freed: dict[str, set[int]] = {name: set() for name in names}
        on_free = {name: pages.update for name, pages in self._freed.items()}
        self._scheduler = build_scheduler(config, runner.info, Extras(on_free=on_free))
        attention: Any = runner._attention
        self._pools = dict(zip(names, attention.pools, strict=False))
        for pool in self._pools.values():
            pool.data.fill_(torch.nan)
        self._states = runner._states
        if self._states is not None:
            self._states.data[:, :-1] = torch.nan
        self.tokens: defaultdict[str, list[int]] = defaultdict(list)
        self.logprobs: defaultdict[str, list[Any]] = defaultdict(list)
        self.prompt_logprobs: defaultdict[str, list[Any]] = defaultdict(list)
        self.num_cached = 0
        self.num_freed: Counter[str] = Counter()

    @property
    def num_retractions(self) -> int:
        return self._scheduler.state.metrics.totals["num_retracted_requests_total"]

    @property
    def num_restored(self) -> int:
        """Number of tokens that were copied back from the host."""
        return self._scheduler.state.metrics.totals["kv_restored_tokens_total"]

    def run(self, *messages: ToScheduler) -> None:
        """Run the requests in the messages until all have ended."""
        scheduler, steps = self._scheduler, 0
        scheduler.receive(list(messages), 0.0)
        while not scheduler.idle:
            assert (steps := steps + 1) < MAX_STEPS, "the load does not end"
            plan = scheduler.next_step(0.0)
            if plan is not None:
                self._poison(plan)
                self._runner.submit(plan)
                result = self._runner.collect()
                assert not result.failures, result.failures
                scheduler.settle(result)
            for item in scheduler.take_output().items:
                self.tokens[item.rid] += item.tokens
                self.logprobs[item.rid] += item.logprobs or []
                self.prompt_logprobs[item.rid] += item.prompt.logprobs if item.prompt is not None else []
                self.num_cached += item.start.cached_tokens if item.start else 0
            scheduler.self_check_during_busy()
        scheduler.on_idle()

    def _poison(self, plan: StepPlan) -> None:
        """Overwrite the pages freed since the last plan, except those that ``plan`` still copies to the host."""
        copies = plan.copies or PageCopies()
        kept = {0: copies.to_host[::2]} | {part.pool: part.to_host[::2] for part in copies.more_pools}
        for number, (name, pages) in enumerate(self._freed.items()):
            self.num_freed[name] += len(pages)
            if name not in self._pools:
                self._poison_states(plan, pages)
                continue
            pool = self._pools[name]
            gone = torch.tensor(sorted(pages.difference(kept.get(number, []))), dtype=torch.int64)
            slots = gone[:, None] * pool.page_size + torch.arange(pool.page_size)
            pool.data[:, :, slots.flatten()] = torch.nan
            pages.clear()

    def _poison_states(self, plan: StepPlan, slots: set[int]) -> None:
        """Overwrite the freed slots, except those from which ``plan`` still takes a state."""
        assert self._states is not None
        sources = {item.states.load for item in plan.items if item.states is not None}
        self._states.data[:, sorted(slots - sources)] = torch.nan
        slots.clear()


def serve(
    runner: ModelRunner, config: SchedulerConfig, prompts: Sequence[list[int]], params: SamplingParams
) -> tuple[list[list[int]], PoisonedLoad]:
    """Run all prompts together. Returns their outputs, and the load."""
    load = PoisonedLoad(runner, config)
    load.run(*(GenerateReq((str(index),), prompt, params) for index, prompt in enumerate(prompts)))
    return [load.tokens[str(index)] for index in range(len(prompts))], load
