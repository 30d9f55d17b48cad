"""Measures steps of a model runner: decode steps with a given context, and prefill chunks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from ebbtide.config import RunnerConfig
from ebbtide.errors import StartupError
from ebbtide.messages import SamplingParams
from ebbtide.model_runner.runner import ModelRunner
from ebbtide.paging import pages_for
from ebbtide.plan import PlanItem, RowInit, StepPlan
from ebbtide.progress import no_progress
from ebbtide.tokenization.model_files import ModelFiles

__all__ = ["MeasuredRunner", "StartupError", "copy_bandwidth", "load"]
WARM_UP_STEPS = 5
PROFILED_STEPS = 8
CHUNK = 2048
COPIES = 10


def copy_bandwidth(device: torch.device, num_bytes: int) -> float:
    """Return the bytes read and written per second by copies on the device."""
    source = torch.ones(num_bytes, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)

    def copy_all() -> None:
        for _ in range(COPIES):
            target.copy_(source)

    copy_all()
    return 2 * num_bytes * COPIES / _seconds(copy_all, device)


def load(folder: str, *, max_batch: int, **options: Any) -> MeasuredRunner:
    """Load a runner with random weights for the configuration in ``folder``. Raises StartupError if that fails."""
    started = time.monotonic()
    options["disable_hybrid_swa_memory"] = True  # the plans of this file have pages of one pool
    config = RunnerConfig(load_format="dummy", max_running_requests=max_batch, **options)
    runner = ModelRunner.load(ModelFiles("dummy", folder), config, no_progress)
    return MeasuredRunner(runner, time.monotonic() - started)


@dataclass(frozen=True)
class MeasuredRunner:
    """A loaded runner. Contexts are not computed: their K/V is whatever the pool contains, zeros or earlier steps."""

    runner: ModelRunner
    load_seconds: float

    def decode(self, batch: int, context: int, num_steps: int, bandwidth: float) -> dict[str, Any]:
        """Measure decode steps of ``batch`` rows with ``context`` tokens each, with plans in flight as in serving.

        bandwidth: bytes per second of copies. The roofline is the time for reading the weights and the contexts' K/V at
            this bandwidth.
        """
        steps = self._decode_plans(batch, context)
        self._run(steps, WARM_UP_STEPS)
        seconds = self._timed(steps, num_steps)
        idle = self._idle_share(steps)
        model: Any = self.runner._model
        pool: Any = self.runner._attention.pool
        token_bytes = pool.shape.token_bytes(pool.dtype)
        least = (model.weight_bytes + batch * context * token_bytes) / bandwidth
        return {
            "step_seconds": seconds / num_steps,
            "tokens_per_s": batch * num_steps / seconds,
            "idle_share": idle,
            "roofline_share": least / (seconds / num_steps),
        }

    def prefill(self, num_tokens: int) -> dict[str, Any]:
        """Measure the prefill of one prompt in chunks, after a warm-up with the same prompt."""
        plans = self._prefill_plans(num_tokens)
        self._run(iter(plans), len(plans))
        seconds = self._timed(iter(plans), len(plans))
        return {"seconds": seconds, "tokens_per_s": num_tokens / seconds}

    def peak_bytes(self) -> int | None:
        """Return the largest amount of memory that was allocated on the device; None on the CPU."""
        return torch.cuda.max_memory_allocated() if self._device.type == "cuda" else None

    @property
    def _device(self) -> torch.device:
        return self.runner._last_tokens.device

    def _decode_plans(self, batch: int, context: int) -> Iterator[StepPlan]:
        """Yield plans without limit; the first one starts the rows. Rows share pages if the pool is too small."""
        info = self.runner.info
        num_pages = pages_for(info.context_length, info.page_size)
        num_pages = min(num_pages, pages_for(context + 200, info.page_size), info.num_pages)
        init = RowInit(SamplingParams(max_tokens=100_000, temperature=0.0), 1)
        rows = range(batch)
        pages = [[(row * num_pages + page) % info.num_pages for page in range(num_pages)] for row in rows]
        position = context - 1
        yield StepPlan(0, [PlanItem(row, position, [5 + row % 100], pages[row], 0, init=init) for row in rows])
        while True:
            position += 1
            yield StepPlan(0, [PlanItem(row, position, None) for row in rows])

    def _prefill_plans(self, num_tokens: int) -> list[StepPlan]:
        info = self.runner.info
        pages = list(range(pages_for(num_tokens, info.page_size)))
        init = RowInit(SamplingParams(max_tokens=9, temperature=0.0), num_tokens)
        plans = []
        for start in range(0, num_tokens, CHUNK):
            tokens = [3 + place % 200 for place in range(start, min(start + CHUNK, num_tokens))]
            is_first, is_last = start == 0, start + CHUNK >= num_tokens
            item = PlanItem(
                0, start, tokens, pages if is_first else [], 0, int(is_last), init=init if is_first else None
            )
            plans.append(StepPlan(0, [item]))
        return plans

    def _run(self, plans: Iterator[StepPlan], count: int) -> None:
        """Run ``count`` plans, with as many in flight as the runner allows."""
        in_flight = 0
        for _ in range(count):
            if in_flight == self.runner.info.max_in_flight:
                self._collect()
                in_flight -= 1
            self.runner.submit(next(plans))
            in_flight += 1
        for _ in range(in_flight):
            self._collect()

    def _collect(self) -> None:
        failures = self.runner.collect().failures
        if failures:
            raise RuntimeError(f"an item failed: {failures[0].problem}")

    def _timed(self, plans: Iterator[StepPlan], count: int) -> float:
        return _seconds(lambda: self._run(plans, count), self._device)

    def _idle_share(self, plans: Iterator[StepPlan]) -> float | None:
        """Return the share of the time in which the device runs neither kernels nor copies; None on the CPU."""
        if self._device.type != "cuda":
            self._run(plans, 1)
            return None
        kinds = [torch.profiler.ProfilerActivity.CUDA]
        with torch.profiler.profile(activities=kinds) as profile:
            self._run(plans, PROFILED_STEPS)
            torch.cuda.synchronize()
        cuda = torch.autograd.DeviceType.CUDA
        spans = sorted(
            (event.time_range.start, event.time_range.end) for event in profile.events() if event.device_type == cuda
        )
        return idle_share(spans)


def idle_share(spans: list[tuple[float, float]]) -> float | None:
    """Return the share of the total time that no span covers; None without spans. spans: sorted."""
    if not spans:
        return None
    covered, reached = 0.0, spans[0][0]
    for start, end in spans:
        covered += max(end - max(start, reached), 0.0)
        reached = max(reached, end)
    total = reached - spans[0][0]
    return 1 - covered / total if total else 0.0


def _seconds(work: Callable[[], None], device: torch.device) -> float:
    """Return the duration of ``work`` in seconds, including all work that it queues on the device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    started = time.perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - started
