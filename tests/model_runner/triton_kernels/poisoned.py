"""Fills new tensors with nan, to detect elements that a kernel does not write."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def full_of_nan(x: Tensor, *size: Any, **options: Any) -> Tensor:
    """Replaces ``Tensor.new_empty``; integers, which the interpreter creates, are 0."""
    value = torch.nan if options.get("dtype", x.dtype).is_floating_point else 0
    return x.new_full(size[0] if isinstance(size[0], tuple) else size, value, **options)
