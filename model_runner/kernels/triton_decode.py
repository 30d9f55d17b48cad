"""Triton kernels for the attention of decode items, which have one query.

The context is divided into splits, whose results are combined afterwards (Flash-Decoding, Dao et al. 2023). The length
of a split depends only on the item, so that the order of every sum does not depend on the rest of the batch.
"""

# ruff: noqa: PLR0913, PLR0917 - a kernel takes everything as arguments and cannot be split into functions
import triton
import triton.language as tl

from .triton_attention import attend_range


def _first_position(end, window, HAS_WINDOW: tl.constexpr, LEAST: tl.constexpr):  # type: ignore[no-untyped-def]
    """The first position of an item's first split: a multiple of LEAST, not after the start of the window."""
    first = 0
    if HAS_WINDOW:
        first = tl.maximum(end - window, 0) // LEAST * LEAST
    return first


def _split_length(span, MAX_SPLITS: tl.constexpr, LEAST: tl.constexpr):  # type: ignore[no-untyped-def]
    """The length of the splits of ``span`` positions: a multiple of LEAST, so that there are at most MAX_SPLITS."""
    return tl.cdiv(tl.cdiv(span, MAX_SPLITS), LEAST) * LEAST


first_position = triton.jit(_first_position)
split_length = triton.jit(_split_length)


def _decode(  # type: ignore[no-untyped-def]  # Triton values have no Python types
    q,
    k_pool,
    v_pool,
    partial,
    partial_max,
    partial_sum,
    page_table,
    item_rows,
    item_ends,
    scale,
    softcap,
    window,
    q_token,
    q_head,
    table_row,
    NUM_KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    MAX_SPLITS: tl.constexpr,
    LEAST_SPLIT: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    EXACT: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Compute every n-th split of one (item, KV head), where n is the number of programs per item and KV head.

    partial: float32 [items, heads, MAX_SPLITS, HEAD_DIM], weighted sums of values, with weights relative to
        ``partial_max``.
    partial_max, partial_sum: float32 [items, heads, MAX_SPLITS], the largest score and the sum of the weights.
    """
    item, kv_head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    end = tl.load(item_ends + item).to(tl.int32)
    table = page_table + tl.load(item_rows + item).to(tl.int64) * table_row
    row = tl.arange(0, BLOCK_M)
    head = kv_head * GROUP + row
    valid = row < GROUP
    dim = tl.arange(0, BLOCK_D)
    inside = valid[:, None] & (dim < HEAD_DIM)[None, :]
    queries = tl.load(q + item * q_token + head[:, None] * q_head + dim[None, :], mask=inside, other=0.0)
    position = tl.zeros([BLOCK_M], tl.int32) + (end - 1)

    first = first_position(end, window, HAS_WINDOW, LEAST_SPLIT)
    length = split_length(end - first, MAX_SPLITS, LEAST_SPLIT)
    for split in range(tl.program_id(2), tl.cdiv(end - first, length), tl.num_programs(2)):
        low = first + split * length
        best, total, acc = attend_range(
            queries,
            position,
            low,
            tl.minimum(end, low + length),
            tl.full([BLOCK_M], float("-inf"), tl.float32),
            tl.zeros([BLOCK_M], tl.float32),
            tl.zeros([BLOCK_M, BLOCK_D], tl.float32),
            k_pool,
            v_pool,
            table,
            kv_head,
            scale,
            softcap,
            window,
            NUM_KV_HEADS,
            HEAD_DIM,
            PAGE_SIZE,
            HAS_SOFTCAP,
            HAS_WINDOW,
            EXACT,
            BLOCK_N,
            BLOCK_D,
        )
        where = (item * (NUM_KV_HEADS * GROUP) + head) * MAX_SPLITS + split
        tl.store(partial + where[:, None] * HEAD_DIM + dim[None, :], acc, mask=inside)
        tl.store(partial_max + where, best, mask=valid)
        tl.store(partial_sum + where, total, mask=valid)


def _combine(  # type: ignore[no-untyped-def]  # Triton values have no Python types
    out,
    partial,
    partial_max,
    partial_sum,
    item_ends,
    sinks,
    window,
    NUM_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    MAX_SPLITS: tl.constexpr,
    LEAST_SPLIT: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Combine the splits of one decode item and head, in order, and write the result to ``out``."""
    item, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    end = tl.load(item_ends + item).to(tl.int32)
    first = first_position(end, window, HAS_WINDOW, LEAST_SPLIT)
    length = split_length(end - first, MAX_SPLITS, LEAST_SPLIT)
    dim = tl.arange(0, BLOCK_D)
    inside = dim < HEAD_DIM
    best = tl.full([1], float("-inf"), tl.float32)
    total = tl.zeros([1], tl.float32)
    if HAS_SINKS:
        best = tl.zeros([1], tl.float32) + tl.load(sinks + head).to(tl.float32)
        total += 1.0
    acc = tl.zeros([BLOCK_D], tl.float32)
    for split in range(tl.cdiv(end - first, length)):
        where = (item * NUM_HEADS + head) * MAX_SPLITS + split
        split_best = tl.load(partial_max + where)
        higher = tl.maximum(best, split_best)
        reference = tl.where(higher == float("-inf"), 0.0, higher)
        shrink, grow = tl.exp(best - reference), tl.exp(split_best - reference)
        values = tl.load(partial + where * HEAD_DIM + dim, mask=inside, other=0.0)
        acc = acc * shrink + values * grow
        total = total * shrink + tl.load(partial_sum + where) * grow
        best = higher
    result = acc / total
    tl.store(out + (item * NUM_HEADS + head) * HEAD_DIM + dim, result.to(out.dtype.element_ty), mask=inside)


decode = triton.jit(_decode)
combine = triton.jit(_combine)
