"""Cost of one scheduler step at 256 running rows and 10,000 waiting, with the simulated runner.

    python bench/scheduler_step.py [--rows 256] [--waiting 10000] [--steps 300] [--window 0] [--states 0] [--compare]
        [--json]

``scheduler`` is receive + next_step + settle + take_output + the busy check, in wall time and in the thread's CPU time,
which other processes prolong less; ``runner`` is the simulation. With ``--window``, there is a second pool with a
sliding window of that many tokens; with ``--states``, there is a pool of that many recurrent states. With
``--compare``, a scheduler with and one without these pools take turns, step by step, and the ratios of their CPU times
are printed too: other processes affect both alike.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

from ebbtide.config import SchedulerConfig
from ebbtide.messages import MAMBA_POOL, SWA_POOL, GenerateReq, PoolInfo, SamplingParams
from ebbtide.model_runner.sim.sim import CONTEXT_LENGTH, SimRunner, SimShape
from ebbtide.scheduler.build import build_scheduler
from ebbtide.scheduler.core import Scheduler

PROMPT_LEN = 100
WARM_UP = 10  # steps


def build(rows: int, page_size: int, window: int, num_states: int) -> tuple[Scheduler, SimRunner]:
    """Return a scheduler and its runner. The pool has 1,200 tokens per row."""
    num_pages = rows * 1200 // page_size
    windows = [PoolInfo(num_pages, page_size, SWA_POOL, window)] if window else []
    states = [PoolInfo(num_states, CONTEXT_LENGTH, MAMBA_POOL)] if num_states else []
    more = (*windows, *states)
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


class Steps:
    """A scheduler with its runner, and the times of its steps in milliseconds.

    Attributes:
        own: wall time of the scheduler.
        cpu: CPU time of the scheduler's thread.
        simulated: wall time of the runner.
    """

    def __init__(self, args: argparse.Namespace, window: int, num_states: int) -> None:
        self.scheduler, self._runner = build(args.rows, args.page_size, window, num_states)
        self.scheduler.receive(requests(args.rows), 0.0)
        self.own: list[float] = []
        self.cpu: list[float] = []
        self.simulated: list[float] = []

    def run(self, step: int) -> None:
        """Run and time one step."""
        scheduler = self.scheduler
        started, cpu_started = time.perf_counter(), time.thread_time()
        plan = scheduler.next_step(float(step))
        planned, cpu_planned = time.perf_counter(), time.thread_time()
        assert plan is not None
        self._runner.submit(plan)
        result = self._runner.collect()
        computed, cpu_computed = time.perf_counter(), time.thread_time()
        scheduler.settle(result)
        scheduler.take_output()
        scheduler.self_check_during_busy()
        ended, cpu_ended = time.perf_counter(), time.thread_time()
        if step >= WARM_UP:
            self.own.append((planned - started + ended - computed) * 1000)
            self.cpu.append((cpu_planned - cpu_started + cpu_ended - cpu_computed) * 1000)
            self.simulated.append((computed - planned) * 1000)


def measure(args: argparse.Namespace) -> dict[str, float]:
    """Return milliseconds per step: medians, and the scheduler's p99."""
    measured = [Steps(args, args.window, args.states), *([Steps(args, 0, 0)] if args.compare else [])]
    for step in range(args.steps + WARM_UP):
        for steps in measured if step % 2 else measured[::-1]:
            if step == WARM_UP - 1:
                steps.scheduler.receive(requests(args.waiting + args.rows)[args.rows :], 0.0)
            steps.run(step)
    for steps in measured:
        assert len(steps.scheduler.state.running) == args.rows
        assert len(steps.scheduler.state.waiting) == args.waiting
    first = measured[0]
    result = {
        "scheduler_ms_p50": statistics.median(first.own),
        "scheduler_ms_p99": statistics.quantiles(first.own, n=100)[98],
        "scheduler_cpu_ms_p50": statistics.median(first.cpu),
        "runner_ms_p50": statistics.median(first.simulated),
    }
    if args.compare:
        one = measured[1]
        result["one_pool_cpu_ms_p50"] = statistics.median(one.cpu)
        result["cpu_ratio_p50"] = statistics.median(first.cpu) / statistics.median(one.cpu)
        result["cpu_ratio_mean"] = statistics.mean(first.cpu) / statistics.mean(one.cpu)
    return result


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--waiting", type=int, default=10_000)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--page-size", type=int, default=16)
    parser.add_argument("--window", type=int, default=0)
    parser.add_argument("--states", type=int, default=0)
    parser.add_argument("--compare", action="store_true")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    result = measure(args)
    print(json.dumps(result) if args.json else "\n".join(f"{name:20} {value:7.3f}" for name, value in result.items()))


if __name__ == "__main__":
    main()
