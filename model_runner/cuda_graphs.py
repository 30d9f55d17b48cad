"""Captures decode graphs on CUDA, and decides which batch sizes are captured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from ebbtide.config import RunnerConfig

from .attention import CAPTURABLE
from .graphs import Capture, graph_sizes

DEFAULT_MAX_SIZE = 256
WARM_UPS = 2  # number of runs before a capture, in which kernels are compiled and libraries allocate their workspaces


@dataclass(frozen=True, slots=True)
class GraphChoice:
    """The batch sizes to capture.

    Attributes:
        sizes: the batch sizes; empty to capture no graph.
        reason: why these sizes were chosen, for the log.
    """

    sizes: tuple[int, ...]
    reason: str


def choose_graphs(config: RunnerConfig, backend: str, *, can_capture: bool, is_capturable: bool) -> GraphChoice:
    """Return the batch sizes to capture.

    Args:
        backend: name of the attention backend.
        can_capture: True if the device can capture graphs.
        is_capturable: value of ``Model.is_capturable``.
    """
    if not can_capture:
        return GraphChoice((), "only CUDA has graphs")
    if config.disable_cuda_graph:
        return GraphChoice((), "--disable-cuda-graph")
    if not is_capturable:
        return GraphChoice((), "the model runs through transformers")
    if backend not in CAPTURABLE:
        return GraphChoice((), f"attention backend {backend} cannot be captured")
    largest = min(config.cuda_graph_max_bs or DEFAULT_MAX_SIZE, config.max_running_requests)
    reason = "--max-running-requests" if largest == config.max_running_requests else "--cuda-graph-max-bs"
    return GraphChoice(graph_sizes(largest), f"up to {largest} rows ({reason})")


def side_stream(device: torch.device) -> torch.cuda.Stream:
    """Return a new stream on a CUDA device."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def cuda_capture(device: torch.device) -> Capture:
    """Return the function that captures graphs on ``device``. All graphs share one memory pool."""
    pool = torch.cuda.graph_pool_handle()
    stream = side_stream(device)

    def capture(compute: Callable[[], None]) -> Callable[[], None]:
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream):
            for _ in range(WARM_UPS):
                compute()
        torch.cuda.current_stream(device).wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool, stream=stream):
            compute()
        replay: Callable[[], None] = graph.replay
        return replay

    return capture
