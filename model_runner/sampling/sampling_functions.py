"""Chooses the functions that sample on a device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec

import torch
from torch import Tensor

from .row_draws import RowDraws, sample_rows
from .top_p_top_k import DrawFunction, draw_tokens


@dataclass(frozen=True, slots=True)
class SamplingFunctions:
    """The functions of one device.

    Attributes:
        draw: draws the tokens of rows that are not greedy.
        sample_rows: samples all rows of a decode graph.
    """

    draw: DrawFunction = draw_tokens
    sample_rows: Callable[[Tensor, RowDraws], Tensor] = sample_rows


def sampling_functions(device: torch.device) -> SamplingFunctions:
    """Return the Triton kernel on CUDA if Triton is installed; else torch or compiled code."""
    if device.type != "cuda" or find_spec("triton") is None:
        return SamplingFunctions()
    from .triton_sampler import draw_with_triton, sample_rows_with_triton

    return SamplingFunctions(draw_with_triton, sample_rows_with_triton)
