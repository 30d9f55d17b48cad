"""Replaces flash-attn's compiled module on the CPU: computes in float64 and checks the arguments.

The order of the parameters is that of the calls in flash-attn's Python code.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch
from torch import Tensor

HALF = (torch.float16, torch.bfloat16)


def flash_module() -> ModuleType:
    """The module ``flash_attn_2_cuda``."""
    module: Any = ModuleType("flash_attn_2_cuda")
    module.fwd_kvcache, module.varlen_fwd = _fwd_kvcache, _varlen_fwd
    result: ModuleType = module
    return result


def _fwd_kvcache(*args: Any) -> tuple[Tensor, Tensor]:
    q, k_cache, v_cache, k, v, seqlens, cos, sin, batch_idx, leftpad, table, alibi, out, *rest = args
    scale, causal, left, right, softcap, _interleaved, num_splits = rest
    assert (k, v, cos, sin, batch_idx, leftpad, alibi, out) == (None,) * 8
    assert num_splits == 0
    assert q.dim() == 4
    num_items, num_queries, num_heads, _ = q.shape
    _check_pages(q, k_cache, v_cache, table, num_items)
    assert seqlens.dtype == torch.int32
    assert seqlens.shape == (num_items,)
    assert seqlens.is_contiguous()
    result = torch.full(q.shape, torch.nan, dtype=q.dtype)
    for item in range(num_items):
        keys, values = _gathered(k_cache, v_cache, table[item], int(seqlens[item]))
        result[item] = _attend(q[item], keys, values, scale, (causal, left, right, softcap))
    return result, torch.zeros(num_items, num_heads, num_queries)


def _varlen_fwd(*args: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    q, k, v, out, cu_q, cu_k, seqused, leftpad, table, alibi, max_q, max_k, *rest = args
    dropout, scale, zero_tensors, causal, left, right, softcap, return_softmax, generator = rest
    assert (out, seqused, leftpad, alibi, generator) == (None,) * 5
    assert (dropout, zero_tensors, return_softmax) == (0.0, False, False)
    assert q.dim() == 3
    num_items = len(cu_q) - 1
    _check_pages(q, k, v, table, num_items)
    for sums in (cu_q, cu_k):
        assert sums.dtype == torch.int32
        assert sums.is_contiguous()
        assert sums.shape == (num_items + 1,)
        assert sums[0] == 0
    query_lens, lens = cu_q.diff().tolist(), cu_k.diff().tolist()
    assert int(cu_q[-1]) == len(q)
    assert max(query_lens) == max_q
    assert max(lens) <= max_k
    result = torch.full(q.shape, torch.nan, dtype=q.dtype)
    for item, (first, count, length) in enumerate(zip(cu_q.tolist(), query_lens, lens, strict=False)):
        keys, values = _gathered(k, v, table[item], length)
        part = _attend(q[first : first + count], keys, values, scale, (causal, left, right, softcap))
        result[first : first + count] = part
    return result, torch.zeros(q.shape[1], len(q)), torch.zeros(0), torch.zeros(2, dtype=torch.int64)


def _check_pages(q: Tensor, k: Tensor, v: Tensor, table: Tensor, num_items: int) -> None:
    assert q.dtype in HALF
    assert q.dtype == k.dtype == v.dtype
    assert q.stride(-1) == k.stride(-1) == v.stride(-1) == 1
    assert k.dim() == 4
    assert k.shape == v.shape
    assert k.shape[1] % 256 == 0
    assert k.shape[3] == q.shape[-1]
    assert k.shape[3] % 8 == 0
    assert k.shape[3] <= 256
    assert q.shape[-2] % k.shape[2] == 0
    assert table.dtype == torch.int32
    assert table.stride(-1) == 1
    assert table.shape[0] == num_items


def _gathered(k: Tensor, v: Tensor, pages: Tensor, length: int) -> tuple[Tensor, Tensor]:
    """K and V of one item, float64 [length, kv_heads, head_dim]. Pages after the item's last one are not read."""
    wanted = pages[: -(-length // k.shape[1])].long()
    assert int(wanted.min()) >= 0
    assert int(wanted.max()) < len(k)
    return k[wanted].flatten(0, 1)[:length].double(), v[wanted].flatten(0, 1)[:length].double()


def _attend(q: Tensor, k: Tensor, v: Tensor, scale: float, masks: tuple[bool, int, int, float]) -> Tensor:
    causal, left, right, softcap = masks
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = torch.einsum("qhd,khd->hqk", q.double(), k) * scale
    if softcap > 0:
        scores = softcap * torch.tanh(scores / softcap)
    behind = (torch.arange(len(q)) + len(k) - len(q))[:, None] - torch.arange(len(k))
    hidden = torch.zeros_like(behind, dtype=torch.bool)
    if causal or right >= 0:
        hidden |= behind < (0 if causal else -right)
    if left >= 0:
        hidden |= behind > left
    weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
    return torch.einsum("hqk,khd->qhd", weights, v).to(q.dtype)
