"""Counts the requests that run at once in the same memory, with one KV pool or with another one for window layers.

    python bench/window_pools.py [--requests 32] [--length 8192] [--ratios 0.1 0.2 0.5 1.0] [--models gemma-3-4b …]

The memory is that of ``--requests`` requests with one pool. The pools have the sizes that the model runner computes for
the model's layers in bfloat16. Requests of ``--length`` tokens (7/8 prompt, 1/8 output, no shared prefix) run on the
scheduler with the simulated runner. The result is the maximum number of running requests before the first retraction
or completion. No times are measured.
"""

from __future__ import annotations

import argparse
import logging
from dataclasses import dataclass

import torch

from ebbtide.config import SchedulerConfig
from ebbtide.messages import GenerateReq, PoolInfo, SamplingParams
from ebbtide.model_runner.kv.kv_pool import KVShape
from ebbtide.model_runner.kv.layer_groups import LayerGroups, group_layers
from ebbtide.model_runner.kv.memory import PoolBudget
from ebbtide.model_runner.sim.sim import SimRunner, SimShape
from ebbtide.scheduler.build import build_scheduler

PAGE_SIZE, CHUNK, IN_FLIGHT, MAX_ROWS = 16, 2048, 2, 1024


@dataclass(frozen=True)
class Shape:
    """The layers of a model: every ``period``-th layer has full attention (0: none), the others have a window."""

    num_layers: int
    kv_heads: int
    head_dim: int
    window: int
    period: int
    context: int = 131_072

    @property
    def windows(self) -> list[int | None]:
        """The window of each layer."""
        is_full = [self.period > 0 and (layer + 1) % self.period == 0 for layer in range(self.num_layers)]
        return [None if full else self.window for full in is_full]

    @property
    def layer_token_bytes(self) -> int:
        """Bytes of one token's K/V in one layer."""
        return KVShape(1, self.kv_heads, self.head_dim).token_bytes(torch.bfloat16)


# From the config.json of the models.
MODELS = {
    "gemma-3-1b": Shape(26, 1, 256, 512, 6, 32_768),
    "gemma-3-4b": Shape(34, 4, 256, 1024, 6),
    "gemma-3-12b": Shape(48, 8, 256, 1024, 6),
    "gemma-3-27b": Shape(62, 16, 128, 1024, 6),
    "gemma-2-9b": Shape(42, 8, 256, 4096, 2, 8192),
    "gpt-oss-20b": Shape(24, 8, 64, 128, 2),
    "mistral-7b-v0.1": Shape(32, 8, 128, 4096, 0, 32_768),
}


def pools(shape: Shape, num_tokens: int, ratio: float | None) -> tuple[PoolInfo, ...]:
    """The pools that fit into the memory of ``num_tokens`` tokens in all layers. ratio: None for one pool."""
    groups = (
        LayerGroups(tuple(range(shape.num_layers)))
        if ratio is None
        else group_layers(shape.windows, shape.context, ratio, None)[0]
    )
    budget = PoolBudget(
        free_bytes=num_tokens * shape.num_layers * shape.layer_token_bytes,
        weight_bytes=0,
        fraction=1.0,
        size_of=lambda num_pages: groups.num_bytes(num_pages, PAGE_SIZE, shape.layer_token_bytes),
        page_size=PAGE_SIZE,
        limit_bytes=None,
        max_total_tokens=None,
    )
    return groups.pools(budget.num_pages(), PAGE_SIZE)


def most_at_once(sizes: tuple[PoolInfo, ...], length: int) -> int:
    """The largest number of requests of ``length`` tokens that run at once."""
    first, *more = sizes
    runner = SimRunner(
        SimShape(first.num_pages, PAGE_SIZE, MAX_ROWS, length, max_in_flight=IN_FLIGHT, more_pools=tuple(more))
    )
    config = SchedulerConfig(chunked_prefill_size=CHUNK, disable_radix_cache=True, memory_check="off")
    scheduler = build_scheduler(config, runner.info)
    output = length // 8
    params = SamplingParams(max_tokens=output, temperature=0.0, ignore_eos=True)
    count = 2 * max(first.num_pages * PAGE_SIZE // length, 1) + 8
    prompts = [[index % 256, index // 256 % 256] * ((length - output) // 2) for index in range(count)]
    scheduler.receive([GenerateReq((f"r{index}",), prompt, params) for index, prompt in enumerate(prompts)], 0.0)
    most = step = 0
    while not scheduler.idle and scheduler.state.metrics.totals["num_retracted_requests_total"] == 0:
        plan = scheduler.next_step(float(step))
        if plan is not None:
            runner.submit(plan)
            scheduler.settle(runner.collect())
        scheduler.take_output()
        most = max(most, len(scheduler.state.running))
        step += 1
        if len(scheduler.state.running) < most:  # the first request has ended
            break
    return most


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=32)
    parser.add_argument("--length", type=int, default=8192)
    parser.add_argument("--ratios", type=float, nargs="+", default=[0.1, 0.2, 0.5, 1.0])
    parser.add_argument("--models", nargs="+", default=list(MODELS))
    args = parser.parse_args()
    logging.disable()  # the first retraction ends a run, so its warning is not of interest
    print(f"| model | one pool | {' | '.join(f'ratio {ratio:g}' for ratio in args.ratios)} |")
    print("|---|" + "---|" * (len(args.ratios) + 1))
    for name in args.models:
        shape = MODELS[name]
        num_tokens = args.requests * args.length
        before = most_at_once(pools(shape, num_tokens, None), args.length)
        after = [most_at_once(pools(shape, num_tokens, ratio), args.length) for ratio in args.ratios]
        cells = [f"{count} ({count / before:.2f} x)" for count in after]
        print(f"| {name} | {before} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
