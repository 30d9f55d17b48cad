"""Cost of one scheduler step at 256 running rows and 10,000 waiting, with the simulated runner.

    python bench/scheduler_step.py [--rows 256] [--waiting 10000] [--steps 300] [--window 0] [--json]

``scheduler`` is receive + next_step + settle + take_output + the busy check, in wall time and in the thread's CPU time,
which other processes prolong less; ``runner`` is the simulation. With ``--window``, there is a second pool with a
sliding window of that many tokens.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

from ebbtide.config import SchedulerConfig
from ebbtide.messages import SWA_POOL, GenerateReq, PoolInfo, SamplingParams
from ebbtide.model_runner.sim.sim import SimRunner, SimShape
from ebbtide.scheduler.build import build_scheduler
from ebbtide.scheduler.core import Scheduler

PROMPT_LEN = 100


def build(rows: int, page_size: int, window: int) -> tuple[Scheduler, SimRunner]:
    """Return a scheduler and its runner. The pool has 1,200 tokens per row."""
    num_pages = rows * 1200 // page_size
    more = (PoolInfo(num_pages, page_size, SWA_POOL, window),) if window else ()
    runner = SimRunner(SimShape(num_pages, page_size=page_size, num_rows=rows, max_in_flight=1, more_pools=more))
    config = SchedulerConfig(chunked_prefill_size=rows * PROMPT_LEN, memory_check="strict")
    return build_scheduler(config, runner.info), runner


def requests(count: int) -> list[GenerateReq]:
    """Return requests that are long enough to decode until the benchmark is over."""
    sampling = SamplingParams(max_tokens=100_000 if count == 0 else 16_000, temperature=0.0, ignore_eos=True)
    return [
        GenerateReq(
            rids=(f"r{index}",), prompt=[index % 256, index // 256 % 256] * (PROMPT_LEN // 2), sampling=sampling
        )
        for index in range(count)
    ]


def measure(rows: int, waiting: int, steps: int, page_size: int, window: int) -> dict[str, float]:
    """Return milliseconds per step: medians, and the scheduler's p99."""
    scheduler, runner = build(rows, page_size, window)
    scheduler.receive(requests(rows), 0.0)
    own: list[float] = []
    cpu: list[float] = []
    simulated: list[float] = []
    for step in range(steps + 10):
        if step == 9:
            scheduler.receive(requests(waiting + rows)[rows:], 0.0)
        started, cpu_started = time.perf_counter(), time.thread_time()
        plan = scheduler.next_step(float(step))
        planned, cpu_planned = time.perf_counter(), time.thread_time()
        assert plan is not None
        runner.submit(plan)
        result = runner.collect()
        computed, cpu_computed = time.perf_counter(), time.thread_time()
        scheduler.settle(result)
        scheduler.take_output()
        scheduler.self_check_during_busy()
        ended, cpu_ended = time.perf_counter(), time.thread_time()
        if step >= 10:
            own.append((planned - started + ended - computed) * 1000)
            cpu.append((cpu_planned - cpu_started + cpu_ended - cpu_computed) * 1000)
            simulated.append((computed - planned) * 1000)
    assert len(scheduler.state.running) == rows
    assert len(scheduler.state.waiting) == waiting
    return {
        "scheduler_ms_p50": statistics.median(own),
        "scheduler_ms_p99": statistics.quantiles(own, n=100)[98],
        "scheduler_cpu_ms_p50": statistics.median(cpu),
        "runner_ms_p50": statistics.median(simulated),
    }


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--waiting", type=int, default=10_000)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--page-size", type=int, default=16)
    parser.add_argument("--window", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    result = measure(args.rows, args.waiting, args.steps, args.page_size, args.window)
    print(json.dumps(result) if args.json else "\n".join(f"{name:20} {value:7.3f}" for name, value in result.items()))


if __name__ == "__main__":
    main()
