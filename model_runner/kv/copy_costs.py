"""What a token costs to compute and to fetch back, measured with plans. Knows any runner, not its model or device."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from ebbtide.messages import RunnerInfo, SamplingParams
from ebbtide.paging import pages_for
from ebbtide.plan import PageCopies, PlanItem, RowInit, Runner, StepPlan

PREFILL_TOKENS = 256
WARM_UP_TOKENS = 16  # enough to compile the kernels; a whole chunk takes seconds on a CPU
COPY_TOKENS = 2048  # enough that what a plan costs by itself does not count


@dataclass(frozen=True, slots=True)
class CopyCosts:
    """Seconds per token: of a prefill chunk, and of a page's way to the host and back."""

    recompute_token_s: float
    restore_token_s: float


def measure_costs(runner: Runner, clock: Callable[[], float] = time.perf_counter) -> CopyCosts:
    """Time a prefill chunk and page copies, after a short chunk and the same copies to warm up.

    The runner must be fresh, with a host tier. Row 0 and the pages from 0 on hold nonsense afterwards.
    """
    info = runner.info
    num_tokens = min(PREFILL_TOKENS, info.context_length, info.num_pages * info.page_size)
    num_pages = min(info.num_pages, info.num_host_pages, pages_for(COPY_TOKENS, info.page_size))
    pairs = [number for page in range(num_pages) for number in (page, page)]
    ways = [StepPlan(0, [], PageCopies(to_host=pairs)), StepPlan(0, [], PageCopies(to_device=pairs))]
    _seconds(runner, [_prefill(min(WARM_UP_TOKENS, num_tokens), info), *ways], clock)
    return CopyCosts(
        recompute_token_s=_seconds(runner, [_prefill(num_tokens, info)], clock) / num_tokens,
        restore_token_s=_seconds(runner, ways, clock) / (num_pages * info.page_size),
    )


def _prefill(num_tokens: int, info: RunnerInfo) -> StepPlan:
    init = RowInit(SamplingParams(max_tokens=1, temperature=0.0), prompt_len=num_tokens + 1)
    tokens = [place % info.vocab_size for place in range(num_tokens)]
    pages = list(range(pages_for(num_tokens, info.page_size)))
    return StepPlan(0, [PlanItem(0, 0, tokens, pages, 0, samples=False, init=init)])


def _seconds(runner: Runner, plans: list[StepPlan], clock: Callable[[], float]) -> float:
    """From the first plan's start until the last one's result is there."""
    started = clock()
    for plan in plans:
        runner.submit(plan)
        runner.collect()
    return clock() - started
