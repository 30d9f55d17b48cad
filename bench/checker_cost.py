"""Cost of the always-on memory check at 256 running rows and 65,536 pages, half of them cached.

    python bench/checker_cost.py [--rows 256] [--pages 65536] [--steps 2000] [--window 0] [--states 0]
        [--json]

With ``--window`` there is a pool for a sliding window of that many tokens, with ``--states`` one of that many recurrent
states.

Microseconds per step: the audit of the plan, then the conservation law with one page in 64 compared with the ledger.
Both are given in wall time, which other processes prolong, and in CPU time of the thread, which they affect only
through the caches.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time

from ebbtide.config import SchedulerConfig
from ebbtide.messages import MAMBA_POOL, SWA_POOL, GenerateReq, PoolInfo, SamplingParams
from ebbtide.model_runner.sim.sim import CONTEXT_LENGTH, SimRunner, SimShape
from ebbtide.scheduler.build import build_scheduler
from ebbtide.scheduler.core import Scheduler

PAGE_SIZE = 16
PROMPT_LEN = 512


def build(args: argparse.Namespace) -> tuple[Scheduler, SimRunner]:
    """A scheduler without its own checks, over a pool of ``args.pages`` pages, and further pools."""
    windows = [PoolInfo(args.pages, PAGE_SIZE, SWA_POOL, args.window)] if args.window else []
    states = [PoolInfo(args.states, CONTEXT_LENGTH, MAMBA_POOL)] if args.states else []
    more = (*windows, *states)
    shape = SimShape(args.pages, page_size=PAGE_SIZE, num_rows=args.rows, max_in_flight=1, more_pools=more)
    runner = SimRunner(shape)
    config = SchedulerConfig(chunked_prefill_size=8192, memory_check="off")
    return build_scheduler(config, runner.info), runner


def now_s() -> tuple[float, float]:
    """Wall clock and CPU time of this thread, in seconds."""
    return time.perf_counter(), time.thread_time()


def step(scheduler: Scheduler, runner: SimRunner, now: float) -> tuple[float, float] | None:
    """Run one step; returns the wall time and the CPU time of audit and busy check together, in seconds."""
    plan = scheduler.next_step(now)
    if plan is None:
        return None
    by_row = {req.row: req for req in scheduler.state.running}
    requests = [by_row[item.row] for item in plan.items]
    started = now_s()
    scheduler.checker.audit_plan(plan.items, requests)
    audited = now_s()
    runner.submit(plan)
    scheduler.settle(runner.collect())
    scheduler.take_output()
    settled = now_s()
    scheduler.checker.self_check_during_busy()
    checked = now_s()
    wall, cpu = (audited[i] - started[i] + checked[i] - settled[i] for i in range(2))
    return wall, cpu


def fill(scheduler: Scheduler, runner: SimRunner, pages: int) -> None:
    """Run requests until half of the pool is cached."""
    rng = random.Random(0)
    serial = 0
    while scheduler.state.pool.tree_cache.evictable_pages < pages // 2:
        prompts = [[rng.randrange(250) for _ in range(PROMPT_LEN)] for _ in range(64)]
        sampling = SamplingParams(max_tokens=1, temperature=0.0)
        scheduler.receive([GenerateReq((f"f{serial + i}",), prompt, sampling) for i, prompt in enumerate(prompts)], 0.0)
        serial += len(prompts)
        while not scheduler.idle:
            step(scheduler, runner, 0.0)


def measure(args: argparse.Namespace) -> dict[str, float]:
    """Microseconds per step, and the share of a step of 20 ms."""
    rows, steps = args.rows, args.steps
    scheduler, runner = build(args)
    fill(scheduler, runner, args.pages)
    rng = random.Random(1)
    sampling = SamplingParams(max_tokens=30_000, temperature=0.0, ignore_eos=True)
    # Lengths differ, as in practice: otherwise all rows would need their new pages in the same few steps.
    prompts = [[rng.randrange(250) for _ in range(rng.randrange(64, 192))] for _ in range(rows)]
    scheduler.receive([GenerateReq((f"r{i}",), prompt, sampling) for i, prompt in enumerate(prompts)], 0.0)
    samples: list[tuple[float, float]] = []
    for number in range(steps + 20):
        cost = step(scheduler, runner, float(number))
        if cost is not None and number >= 20:
            samples.append(cost)
    assert len(scheduler.state.running) == rows
    result = {}
    for name, column in zip(("wall", "cpu"), zip(*samples, strict=True), strict=True):
        micros = [seconds * 1e6 for seconds in column]
        result[f"{name}_p50_us"] = statistics.median(micros)
        result[f"{name}_p99_us"] = statistics.quantiles(micros, n=100)[98]
    result["share_of_20_ms_percent"] = result["wall_p50_us"] / 200
    return result


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--pages", type=int, default=65_536)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--window", type=int, default=0)
    parser.add_argument("--states", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    result = measure(args)
    print(json.dumps(result) if args.json else "\n".join(f"{name:24} {value:8.2f}" for name, value in result.items()))


if __name__ == "__main__":
    main()
