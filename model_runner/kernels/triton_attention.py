"""Triton kernels that write K/V and compute attention over pages.

The kernels use strides and page tables, and do not depend on batches or layers. A program computes the attention of a
block of queries that belong to one item and share a KV head. Its rows are (token, head) pairs; the head varies fastest.
The softmax is computed online (Milakov, Gimelshein 2018), as in FlashAttention-2 (Dao 2023). The context of a decode
item is divided into splits of a fixed number of tokens, whose results are combined afterwards (Flash-Decoding, Dao et
al. 2023), so that the order of every sum depends only on the item, not on the rest of the batch.
"""

# ruff: noqa: PLR0913, PLR0915, PLR0917 - a kernel takes everything as arguments and cannot be split into functions
import triton
import triton.language as tl


def _write_kv(  # type: ignore[no-untyped-def]  # Triton values have no Python types
    k,
    v,
    k_pool,
    v_pool,
    slots,
    k_token,
    k_head,
    v_token,
    v_head,
    NUM_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Store K and V of one token, [heads, head_dim] with the given strides, in the token's pool slot."""
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + token)
    inside = tl.arange(0, BLOCK)
    valid = inside < NUM_HEADS * HEAD_DIM
    head, dim = inside // HEAD_DIM, inside % HEAD_DIM
    to = slot * (NUM_HEADS * HEAD_DIM) + inside
    tl.store(k_pool + to, tl.load(k + token * k_token + head * k_head + dim, mask=valid), mask=valid)
    tl.store(v_pool + to, tl.load(v + token * v_token + head * v_head + dim, mask=valid), mask=valid)


def _attend(  # type: ignore[no-untyped-def]  # Triton values have no Python types
    q,
    k_pool,
    v_pool,
    out,
    partial,
    partial_max,
    partial_sum,
    page_table,
    block_items,
    block_firsts,
    item_rows,
    item_ends,
    item_offsets,
    item_lens,
    sinks,
    scale,
    softcap,
    window,
    q_token,
    q_head,
    table_row,
    num_splits,
    NUM_KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    SPLIT_TOKENS: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    EXACT: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Compute the attention of one (query block, KV head, split) and write it to ``out`` if SPLIT_TOKENS is 0.

    Otherwise, the context is divided into splits, and the result of this split is written to ``partial``.

    out: [T, heads, HEAD_DIM].
    partial: float32 [T, heads, num_splits, HEAD_DIM], weighted sums of values, with weights relative to
        ``partial_max``.
    partial_max, partial_sum: float32 [T, heads, num_splits], the largest score and the sum of the weights.
    """
    block, kv_head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    item = tl.load(block_items + block)
    first = tl.load(block_firsts + block)
    end = tl.load(item_ends + item).to(tl.int32)
    query_len = tl.load(item_lens + item)
    table = page_table + tl.load(item_rows + item).to(tl.int64) * table_row

    row = tl.arange(0, BLOCK_M)
    query = first + row // GROUP  # index in the item
    head = kv_head * GROUP + row % GROUP
    valid = (row < (BLOCK_M // GROUP) * GROUP) & (query < query_len)
    token = (tl.load(item_offsets + item) + query).to(tl.int64)
    position = end - query_len + query
    dim = tl.arange(0, BLOCK_D)
    q_at = q + token[:, None] * q_token + head[:, None] * q_head + dim[None, :]
    queries = tl.load(q_at, mask=valid[:, None] & (dim < HEAD_DIM)[None, :], other=0.0)

    low, high = 0, tl.minimum(end, end - query_len + first + BLOCK_M // GROUP)
    if HAS_WINDOW:
        low = tl.maximum(end - query_len + first - window + 1, 0)
    if SPLIT_TOKENS > 0:
        low = tl.maximum(low, split * SPLIT_TOKENS)
        high = tl.minimum(high, (split + 1) * SPLIT_TOKENS)
    low = low // BLOCK_N * BLOCK_N  # the boundaries of K/V blocks do not depend on the start of the chunk

    best = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    if HAS_SINKS and SPLIT_TOKENS == 0:
        best = tl.load(sinks + head, mask=valid, other=0.0).to(tl.float32)
        total += 1.0
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    for start in range(low, high, BLOCK_N):
        at = start + tl.arange(0, BLOCK_N)
        page = tl.load(table + at // PAGE_SIZE, mask=at < high, other=0).to(tl.int64)
        base = ((page * PAGE_SIZE + at % PAGE_SIZE) * NUM_KV_HEADS + kv_head) * HEAD_DIM
        readable = (at < high)[:, None] & (dim < HEAD_DIM)[None, :]
        keys = tl.load(k_pool + base[:, None] + dim[None, :], mask=readable, other=0.0)
        scores = tl.dot(queries, tl.trans(keys), input_precision="ieee" if EXACT else "tf32") * scale
        if HAS_SOFTCAP:
            scores = softcap * (1.0 - 2.0 / (1.0 + tl.exp(2.0 * scores / softcap)))
        seen = (at[None, :] <= position[:, None]) & (at < high)[None, :]
        if HAS_WINDOW:
            seen &= position[:, None] - at[None, :] < window
        scores = tl.where(seen, scores, float("-inf"))
        higher = tl.maximum(best, tl.max(scores, 1))
        # A row without a visible position so far has no maximum: keep its exponents finite.
        reference = tl.where(higher == float("-inf"), 0.0, higher)
        weights = tl.exp(scores - reference[:, None])
        shrink = tl.exp(best - reference)
        values = tl.load(v_pool + base[:, None] + dim[None, :], mask=readable, other=0.0)
        acc = acc * shrink[:, None] + tl.dot(
            weights.to(values.dtype), values, input_precision="ieee" if EXACT else "tf32"
        )
        total = total * shrink + tl.sum(weights, 1)
        best = higher

    heads = NUM_KV_HEADS * GROUP
    store = valid[:, None] & (dim < HEAD_DIM)[None, :]
    if SPLIT_TOKENS > 0:
        where = (token * heads + head) * num_splits + split
        tl.store(partial + where[:, None] * HEAD_DIM + dim[None, :], acc, mask=store)
        tl.store(partial_max + where, best, mask=valid)
        tl.store(partial_sum + where, total, mask=valid)
    else:
        where = token * heads + head
        result = acc / tl.where(total == 0.0, 1.0, total)[:, None]
        tl.store(out + where[:, None] * HEAD_DIM + dim[None, :], result.to(out.dtype.element_ty), mask=store)


def _combine(  # type: ignore[no-untyped-def]  # Triton values have no Python types
    out,
    partial,
    partial_max,
    partial_sum,
    item_ends,
    sinks,
    num_splits,
    NUM_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    SPLIT_TOKENS: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Combine the splits of one decode item and head, in order, and write the result to ``out``."""
    item, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    end = tl.load(item_ends + item).to(tl.int32)
    dim = tl.arange(0, BLOCK_D)
    inside = dim < HEAD_DIM
    best = tl.full([1], float("-inf"), tl.float32)
    total = tl.zeros([1], tl.float32)
    if HAS_SINKS:
        best = tl.zeros([1], tl.float32) + tl.load(sinks + head).to(tl.float32)
        total += 1.0
    acc = tl.zeros([BLOCK_D], tl.float32)
    for split in range(tl.cdiv(end, SPLIT_TOKENS)):
        where = (item * NUM_HEADS + head) * num_splits + split
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


write_kv = triton.jit(_write_kv)
attend = triton.jit(_attend)
combine = triton.jit(_combine)
