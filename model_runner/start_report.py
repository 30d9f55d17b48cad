"""Reports at the start of a runner: each choice with its reason and, if memory runs out, which parts took it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

from ebbtide.config import RunnerConfig
from ebbtide.errors import StartupError
from ebbtide.messages import RunnerInfo

from .cuda_graphs import GraphChoice

log = logging.getLogger(__name__)

GIB = 1 << 30
# The parts of the start that allocate memory on the device, and what to change if one does not fit.
ADVICE = {
    "the weights": "Choose a smaller model, or --dtype bfloat16 if the model is stored in float32.",
    "the KV pool": "Lower --mem-fraction-static, --max-total-tokens or --max-running-requests.",
    "the decode graphs": (
        "Lower --mem-fraction-static, which leaves more memory beside the pool, or --cuda-graph-max-bs, or use "
        "--disable-cuda-graph."
    ),
}


@dataclass(slots=True)
class StartMemory:
    """The memory that each part of the start has allocated.

    Attributes:
        allocated: returns the bytes that this process has allocated on the device.
        taken: part → bytes that it allocated, in the order in which the parts ran.
    """

    allocated: Callable[[], int]
    taken: dict[str, int] = field(default_factory=dict)

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Record what the block allocates. Raises StartupError with ``ADVICE`` if the device has too little memory."""
        before = self.allocated()
        try:
            yield
        except torch.OutOfMemoryError as error:
            taken = ", ".join(f"{part} took {size / GIB:.2f} GiB" for part, size in self.taken.items())
            raise StartupError(
                f"The device has too little memory for {name}{f': {taken}' if taken else ''}. {ADVICE[name]}"
            ) from error
        self.taken[name] = self.allocated() - before


def start_memory(device: torch.device) -> StartMemory:
    """Return the record for a start on ``device``. On the CPU, it counts nothing."""
    if device.type != "cuda":
        return StartMemory(lambda: 0)
    return StartMemory(lambda: int(torch.cuda.memory_allocated(device)))


def choices_table(config: RunnerConfig, info: RunnerInfo, graphs: GraphChoice) -> str:
    """Return one line per choice at the start: its name, its value and the reason."""
    pool_tokens = info.num_pages * info.page_size
    rows = [
        ("device", info.device, _why(config.device, "--device", "CUDA if it is available")),
        ("dtype", info.dtype, _why(config.dtype, "--dtype", "see the flag's description")),
        ("attention", info.attention, _why(config.attention_backend, "--attention-backend", "the first available one")),
        ("page size", f"{info.page_size}", _why(config.page_size, "--page-size", "the attention backend's default")),
        (
            "KV pool",
            f"{pool_tokens} tokens, {info.pool_bytes / GIB:.2f} GiB",
            _why(config.max_total_tokens, "--max-total-tokens", f"--mem-fraction-static {config.mem_fraction_static}"),
        ),
        ("decode graphs", f"{len(graphs.sizes)}", graphs.reason),
        (
            "steps in flight",
            f"{info.max_in_flight}",
            "--disable-overlap-schedule" if config.disable_overlap_schedule else "2 on CUDA, 1 on the CPU",
        ),
    ]
    return "\n".join(f"  {what:<18}{value:<28}{why}" for what, value, why in rows)


def log_choices(config: RunnerConfig, info: RunnerInfo, graphs: GraphChoice) -> None:
    """Log the table. On the CPU, where most choices are always the same, the log level is DEBUG."""
    level = logging.INFO if info.device == "cuda" else logging.DEBUG
    log.log(level, "choices of the start:\n%s", choices_table(config, info, graphs))


def _why(value: object, flag: str, default: str) -> str:
    return default if value in (None, "auto") else flag
