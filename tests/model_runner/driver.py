"""A minimal scheduler: drives a runner with step plans, with a page allocator and without a cache."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ebbtide.config import RunnerConfig
from ebbtide.messages import MAMBA_POOL, SamplingParams, TokenLogprob
from ebbtide.model_runner.graphs import Capture
from ebbtide.model_runner.runner import ModelRunner
from ebbtide.paging import pages_for
from ebbtide.plan import PageWrite, PlanItem, RowInit, Runner, StateCopies, StepPlan
from ebbtide.progress import no_progress
from ebbtide.tokenization.model_files import ModelFiles


@dataclass
class Generation:
    """The state of one request."""

    row: int
    prompt: list[int]
    sampling: SamplingParams
    outputs: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob | None] = field(default_factory=list)
    computed: int = 0
    pages: list[list[int]] = field(default_factory=list)  # per pool
    started: bool = False


class Driver:
    """Runs prompts to the end of their ``max_tokens``; EOS does not end them.

    own_samples: decode items use the row's own last sample instead of the token. chunk: prefill tokens per step.
    """

    def __init__(self, runner: Runner, *, chunk: int = 256, own_samples: bool = True) -> None:
        self.runner = runner
        self._chunk = chunk
        self._own_samples = own_samples
        # Descending, so that consecutive pages of a sequence are not consecutive in the pool.
        self._free = [deque(range(pool.num_pages - 1, -1, -1)) for pool in runner.info.pools]
        self._has_states = runner.info.pools[-1].name == MAMBA_POOL
        self._number = 0

    def generate(
        self, prompts: Sequence[list[int]], sampling: SamplingParams | list[SamplingParams]
    ) -> list[list[int]]:
        """The outputs of all prompts, run together."""
        return [sequence.outputs for sequence in self.run(prompts, sampling)]

    def run(self, prompts: Sequence[list[int]], sampling: SamplingParams | list[SamplingParams]) -> list[Generation]:
        """Run all prompts together."""
        params = sampling if isinstance(sampling, list) else [sampling] * len(prompts)
        sequences = [
            Generation(row, prompt, one) for row, (prompt, one) in enumerate(zip(prompts, params, strict=True))
        ]
        while running := [one for one in sequences if len(one.outputs) < one.sampling.max_tokens]:
            self.step(running)
        for sequence in sequences:
            for free, pages in zip(self._free, sequence.pages, strict=True):
                free.extend(pages)
        return sequences

    def step(self, running: list[Generation]) -> None:
        """One plan: every sequence that decodes, then prefill chunks within the budget."""
        items = [self._decode(one) for one in running if one.outputs]
        who = [one for one in running if one.outputs]
        budget = self._chunk
        for one in running:
            if not one.outputs and budget:
                items.append(self._prefill(one, budget))
                who.append(one)
                budget -= len(items[-1].tokens or [])
        self._number += 1
        self.runner.submit(StepPlan(self._number, items))
        result = self.runner.collect()
        assert result.number == self._number
        assert not result.failures
        sampled = [one for one, item in zip(who, items, strict=True) if item.num_samples]
        logprobs = result.logprobs or [None] * len(sampled)
        for one, [token], logprob in zip(sampled, result.tokens, logprobs, strict=True):
            one.outputs.append(token)
            one.logprobs += logprob or [None]

    def _decode(self, one: Generation) -> PlanItem:
        index, pages, more = self._grow(one, 1)
        start = one.computed
        one.computed += 1
        tokens = None if self._own_samples else [one.outputs[-1]]
        return PlanItem(one.row, start, tokens, pages, index, more_pages=more)

    def _prefill(self, one: Generation, budget: int) -> PlanItem:
        tokens = one.prompt[one.computed : one.computed + budget]
        index, pages, more = self._grow(one, len(tokens))
        init = None if one.started else RowInit(one.sampling, len(one.prompt), one.prompt)
        states = StateCopies(load=-1) if init is not None and self._has_states else None
        start = one.computed
        one.started = True
        one.computed += len(tokens)
        samples = one.computed == len(one.prompt)
        return PlanItem(one.row, start, tokens, pages, index, samples, init, more_pages=more, states=states)

    def _grow(self, one: Generation, count: int) -> tuple[int, list[int], tuple[PageWrite, ...]]:
        """The page index and the new pages of the first pool, and those of the others. No page is ever freed."""
        one.pages = one.pages or [[] for _ in self._free]
        index = len(one.pages[0])
        number = pages_for(one.computed + count, self.runner.info.page_size) - index
        counts = [number] * len(self._free)
        if self._has_states:
            counts[-1] = 1 - len(one.pages[-1])  # one slot, whatever the length
        new = [[free.popleft() for _ in range(count)] for free, count in zip(self._free, counts, strict=True)]
        for held, pages in zip(one.pages, new, strict=True):
            held += pages
        more = [PageWrite(pool, index, pages) for pool, pages in enumerate(new[1:], 1) if pages]
        if more and self._has_states and more[-1].pool == len(new) - 1:
            more[-1] = PageWrite(len(new) - 1, 0, new[-1])
        return index, new[0], tuple(more)


def page_writes(runner: ModelRunner, pages: list[int]) -> tuple[PageWrite, ...]:
    """Give a row the pages with these numbers, from its first page on, in each pool except the first one."""
    return tuple(PageWrite(pool, 0, pages) for pool in range(1, len(runner.info.pools)) if pages)


def load_runner(path: Path, **options: object) -> ModelRunner:
    """A runner for a Hugging Face folder or a GGUF file; float32 and a small pool by default."""
    return load_with_graphs(path, None, **options)


def load_with_graphs(path: Path, capture: Capture | None, **options: object) -> ModelRunner:
    """Like ``load_runner``, but with decode graphs unless ``capture`` is None."""
    defaults: dict[str, object] = {
        "dtype": "float32",
        "device": "cpu",
        "max_total_tokens": 8192,
        "max_running_requests": 40,
    }
    if path.suffix == ".gguf":
        files = ModelFiles(path.stem, str(path.parent), path.name)
    else:
        files = ModelFiles(path.name, str(path))
    return ModelRunner.load(files, RunnerConfig(**(defaults | options)), no_progress, capture=capture)  # type: ignore[arg-type]
