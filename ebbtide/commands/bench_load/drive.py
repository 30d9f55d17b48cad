"""Sends the requests of a load: a fixed number in flight (closed loop), or by arrival time (open loop)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import aiohttp

from .client import Outcome, Target, count_prompt_tokens, send
from .workload import WORDS, Calibration, Job

OnOutcome = Callable[[Outcome], None]


@dataclass(frozen=True, slots=True)
class Run:
    """All outcomes of a load.

    Attributes:
        duration_s: seconds from the start of the load to the end of the last answer.
        client_cpu_s: CPU time of the load generator, in seconds.
    """

    outcomes: list[Outcome]
    duration_s: float
    client_cpu_s: float


async def calibrate(session: aiohttp.ClientSession, target: Target) -> Calibration | None:
    """Measure the tokens per word with two small requests. Returns None if the server does not report token counts."""
    counts = []
    for words in (WORDS, WORDS + WORDS):  # each word occurs equally often, as on average in the measured prompts
        num_tokens = await count_prompt_tokens(session, target, Job(" ".join(words), max_tokens=1))
        if num_tokens is None:
            return None
        counts.append((len(words), num_tokens))
    few, many = counts
    return Calibration.between(few, many) if many[1] > few[1] else None


async def drive(
    session: aiohttp.ClientSession, target: Target, jobs: list[Job], *, concurrency: int | None, on_outcome: OnOutcome
) -> Run:
    """Send all jobs. concurrency: maximum number in flight; None to send each job at its arrival time."""
    outcomes: list[Outcome] = []
    started, cpu_started = time.perf_counter(), time.process_time()

    async def one(job: Job, due: float | None = None) -> None:
        outcome = await send(session, target, job, due)
        outcomes.append(outcome)
        on_outcome(outcome)

    async def worker(waiting: Iterator[Job]) -> None:
        for job in waiting:  # all workers share one iterator
            await one(job)

    async with asyncio.TaskGroup() as tasks:
        if concurrency is None:
            for job in jobs:
                due = started + job.at_s
                await asyncio.sleep(max(0.0, due - time.perf_counter()))
                tasks.create_task(one(job, due))
        else:
            waiting = iter(jobs)
            for _ in range(min(concurrency, len(jobs))):
                tasks.create_task(worker(waiting))
    return Run(outcomes, time.perf_counter() - started, time.process_time() - cpu_started)
