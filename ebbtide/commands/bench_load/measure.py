"""A complete measurement: find the model, calibrate, warm up, run the load, summarize."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import aiohttp
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from .client import Outcome, Target, first_model, open_session
from .drive import OnOutcome, calibrate, drive
from .report import Report, summarize
from .workload import Calibration, Workload, make_jobs

# Assumed for servers that do not report token counts: a common word is one token in most vocabularies.
ONE_TOKEN_PER_WORD = Calibration(tokens_per_word=1.0, overhead=0.0)


@dataclass(frozen=True, slots=True)
class Measurement:
    """A load and its result.

    Attributes:
        concurrency: maximum number of requests in flight; None for an open loop.
        calibration: the measured tokens per word; None if the server does not report token counts.
    """

    target: Target
    workload: Workload
    concurrency: int | None
    calibration: Calibration | None
    report: Report


async def measure(target: Target, workload: Workload, *, concurrency: int, num_warmup: int) -> Measurement:
    """Run a load and summarize it. ``concurrency`` has no effect if ``workload.request_rate`` is set."""
    in_flight = concurrency if workload.request_rate is None else None
    async with open_session(target) as session:
        if not target.model:
            target = replace(target, model=await first_model(session, target.base_url))
        calibration = await calibrate(session, target)
        words = calibration or ONE_TOKEN_PER_WORD
        await _warm_up(session, target, replace(workload, num_requests=num_warmup, request_rate=None), words)
        jobs = make_jobs(workload, words)
        with _progress_bar(len(jobs)) as on_outcome:
            run = await drive(session, target, jobs, concurrency=in_flight, on_outcome=on_outcome)
    return Measurement(target, workload, in_flight, calibration, summarize(run))


async def _warm_up(session: aiohttp.ClientSession, target: Target, workload: Workload, words: Calibration) -> None:
    """Send warm-up requests. Their prompts differ from the measured ones, which must not be in the prefix cache."""
    jobs = make_jobs(workload, words, stream="warmup")
    await drive(session, target, jobs, concurrency=len(jobs), on_outcome=lambda outcome: None)


@contextmanager
def _progress_bar(total: int) -> Iterator[OnOutcome]:
    """Show a progress bar on stderr if it is a terminal. Yields the function to call with each outcome."""
    console = Console(file=sys.stderr)
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("requests", total=total)
        failed = 0

        def on_outcome(outcome: Outcome) -> None:
            nonlocal failed
            failed += bool(outcome.error)
            progress.update(task, advance=1, description=f"requests, {failed} failed" if failed else "requests")

        yield on_outcome
