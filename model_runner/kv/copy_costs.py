"""Measures the cost of recomputing a token and of restoring its KV from the host. The module works with any runner."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from ebbtide.messages import RunnerInfo, SamplingParams
from ebbtide.paging import pages_for
from ebbtide.plan import PageCopies, PageWrite, PlanItem, PoolCopies, RowInit, Runner, StepPlan

PREFILL_TOKENS = 256
WARM_UP_TOKENS = 16  # enough tokens to compile the kernels; a full chunk would take seconds on a CPU
COPY_TOKENS = 2048  # enough tokens to make the overhead of a plan negligible


@dataclass(frozen=True, slots=True)
class CopyCosts:
    """The measured costs.

    Attributes:
        recompute_token_s: seconds of prefill per token.
        restore_token_s: seconds per token for copying KV pages to the host and back.
    """

    recompute_token_s: float
    restore_token_s: float


def measure_costs(runner: Runner, clock: Callable[[], float] = time.perf_counter) -> CopyCosts:
    """Measure a prefill chunk and page copies, after a warm-up with a shorter chunk and the same copies.

    The runner must be unused and have host pages. Afterwards, the contents of row 0 and of its pages are undefined.
    """
    info = runner.info
    smallest = min(pool.num_pages * pool.page_size for pool in info.pools)
    num_tokens = min(PREFILL_TOKENS, info.context_length, smallest)
    num_pages = min(info.num_pages, info.num_host_pages, pages_for(COPY_TOKENS, info.page_size))
    ways = [StepPlan(0, [], copies) for copies in _there_and_back(num_pages, info)]
    _seconds(runner, [_prefill(min(WARM_UP_TOKENS, num_tokens), info), *ways], clock)
    return CopyCosts(
        recompute_token_s=_seconds(runner, [_prefill(num_tokens, info)], clock) / num_tokens,
        restore_token_s=_seconds(runner, ways, clock) / (num_pages * info.page_size),
    )


def _prefill(num_tokens: int, info: RunnerInfo) -> StepPlan:
    init = RowInit(SamplingParams(max_tokens=1, temperature=0.0), prompt_len=num_tokens + 1)
    tokens = [place % info.vocab_size for place in range(num_tokens)]
    pages = list(range(pages_for(num_tokens, info.page_size)))
    more = tuple(PageWrite(number, 0, pages) for number in range(1, len(info.pools)))
    return StepPlan(0, [PlanItem(0, 0, tokens, pages, 0, num_samples=0, init=init, more_pages=more)])


def _there_and_back(num_pages: int, info: RunnerInfo) -> tuple[PageCopies, PageCopies]:
    """Return the copies of a request with ``num_pages`` pages in the first pool, and its window in the others."""
    pairs = _pairs(num_pages)
    more = []
    for number, (pool, num_host_pages) in enumerate(zip(info.pools[1:], info.more_host_pages, strict=False), 1):
        in_window = num_pages if pool.window is None else pages_for(pool.window, pool.page_size)
        more.append((number, _pairs(min(num_pages, pool.num_pages, num_host_pages, in_window))))
    return (
        PageCopies(pairs, [], tuple(PoolCopies(number, others, []) for number, others in more)),
        PageCopies([], pairs, tuple(PoolCopies(number, [], others) for number, others in more)),
    )


def _pairs(num_pages: int) -> list[int]:
    return [number for page in range(num_pages) for number in (page, page)]


def _seconds(runner: Runner, plans: list[StepPlan], clock: Callable[[], float]) -> float:
    """Return the seconds from the submission of the first plan to the result of the last plan."""
    started = clock()
    for plan in plans:
        runner.submit(plan)
        runner.collect()
    return clock() - started
