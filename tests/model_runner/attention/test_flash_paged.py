from __future__ import annotations

import pytest
import torch

from ebbtide.errors import StartupError
from ebbtide.model_runner.attention.flash_paged import build, unavailable
from ebbtide.model_runner.kv.kv_pool import KVPool, KVShape


def test_flash_attention_is_not_for_the_cpu() -> None:
    assert unavailable(torch.device("cpu"), torch.bfloat16) == "it needs a CUDA device"


def test_flash_attention_says_which_pages_it_needs() -> None:
    pool = KVPool(KVShape(1, 1, 8), 4, 16, dtype=torch.bfloat16, device=torch.device("cpu"))
    with pytest.raises(StartupError, match="--page-size that is a multiple of 256, not 16"):
        build(pool)
