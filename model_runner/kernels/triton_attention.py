"""Triton kernels that write K/V and compute the attention of prefill chunks over pages.

The kernels take tensors, strides and page tables as arguments; this module uses neither batch nor layer classes. A
program computes the attention of a block of queries that belong to one item and share a KV head. Its rows are (token,
head) pairs; the head varies fastest. The softmax is computed online (Milakov, Gimelshein 2018), as in FlashAttention-2
(Dao 2023). The order of every sum depends only on the item, not on the rest of the batch.
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


def _attend_range(  # type: ignore[no-untyped-def]  # Triton values have no Python types
    queries,
    position,
    low,
    high,
    best,
    total,
    acc,
    k_pool,
    v_pool,
    table,
    kv_head,
    scale,
    softcap,
    window,
    NUM_KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    EXACT: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Attend to the positions from ``low``, a multiple of BLOCK_N, to ``high`` → best, total, acc.

    queries: [BLOCK_M, BLOCK_D]. position: [BLOCK_M], the positions of the queries.
    best, total: [BLOCK_M], the largest score so far and the sum of the weights relative to it.
    acc: float32 [BLOCK_M, BLOCK_D], the sum of the values with these weights.
    """
    dim = tl.arange(0, BLOCK_D)
    oldest = 0
    if HAS_WINDOW:
        oldest = tl.min(position, 0) - window + 1
    for start in range(low, high, BLOCK_N):
        at = start + tl.arange(0, BLOCK_N)
        # Pages before the window may belong to other requests and contain NaN.
        known = (at < high) & (at >= oldest)
        page = tl.load(table + at // PAGE_SIZE, mask=known, other=0).to(tl.int64)
        base = ((page * PAGE_SIZE + at % PAGE_SIZE) * NUM_KV_HEADS + kv_head) * HEAD_DIM
        readable = known[:, None] & (dim < HEAD_DIM)[None, :]
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
    return best, total, acc


attend_range = triton.jit(_attend_range)


def _prefill(  # type: ignore[no-untyped-def]  # Triton values have no Python types
    q,
    k_pool,
    v_pool,
    out,
    page_table,
    block_items,
    block_firsts,
    item_rows,
    item_ends,
    item_offsets,
    sinks,
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
    HAS_SOFTCAP: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    EXACT: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Compute the attention of one (query block, KV head) of a prefill chunk.

    out: [T, heads, HEAD_DIM].
    """
    block, kv_head = tl.program_id(0), tl.program_id(1)
    item = tl.load(block_items + block)
    first = tl.load(block_firsts + block)
    end = tl.load(item_ends + item).to(tl.int32)
    offset = tl.load(item_offsets + item)
    query_len = tl.load(item_offsets + item + 1) - offset
    table = page_table + tl.load(item_rows + item).to(tl.int64) * table_row

    row = tl.arange(0, BLOCK_M)
    query = first + row // GROUP  # index in the item
    head = kv_head * GROUP + row % GROUP
    valid = (row < (BLOCK_M // GROUP) * GROUP) & (query < query_len)
    token = (offset + query).to(tl.int64)
    dim = tl.arange(0, BLOCK_D)
    q_at = q + token[:, None] * q_token + head[:, None] * q_head + dim[None, :]
    queries = tl.load(q_at, mask=valid[:, None] & (dim < HEAD_DIM)[None, :], other=0.0)

    low, high = 0, tl.minimum(end, end - query_len + first + BLOCK_M // GROUP)
    if HAS_WINDOW:
        low = tl.maximum(end - query_len + first - window + 1, 0)
    low = low // BLOCK_N * BLOCK_N  # the boundaries of K/V blocks do not depend on the start of the chunk
    best = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    if HAS_SINKS:
        best = tl.load(sinks + head, mask=valid, other=0.0).to(tl.float32)
        total += 1.0
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    best, total, acc = attend_range(
        queries,
        end - query_len + query,
        low,
        high,
        best,
        total,
        acc,
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
    where = token * (NUM_KV_HEADS * GROUP) + head
    result = acc / tl.where(total == 0.0, 1.0, total)[:, None]
    store = valid[:, None] & (dim < HEAD_DIM)[None, :]
    tl.store(out + where[:, None] * HEAD_DIM + dim[None, :], result.to(out.dtype.element_ty), mask=store)


write_kv = triton.jit(_write_kv)
prefill = triton.jit(_prefill)
