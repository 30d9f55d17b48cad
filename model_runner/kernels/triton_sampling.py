"""A Triton kernel that samples rows without sorting: greedy, or with temperature, top_k, top_p and min_p.

The k-th largest probability is found digit by digit: a pass over the row counts the probabilities that are at least
some value, as in a radix selection. The borders of top_k and top_p follow from counts and sums, and the token from the
cumulative sum over the token ids.
"""

# ruff: noqa: PLR0913, PLR0915, PLR0917 - a kernel takes everything as arguments and cannot be split into functions
import triton
import triton.language as tl


def _at_least(logits, num_ids, peak, temperature, bits, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """The number and the sum, float64, of the probabilities whose bits are at least ``bits``.

    Probabilities are relative to the largest one, float32 in [0, 1]; -1 past the end of the row.
    """
    count = tl.zeros([], tl.int32)
    total = tl.zeros([], tl.float64)
    for start in range(0, num_ids, BLOCK):
        at = start + tl.arange(0, BLOCK)
        values = tl.load(logits + at, mask=at < num_ids, other=float("-inf")).to(tl.float32)
        weights = tl.where(at < num_ids, tl.exp((values - peak) / temperature), -1.0)
        large = weights.to(tl.int32, bitcast=True) >= bits
        count += tl.sum(large.to(tl.int32))
        total += tl.sum(tl.where(large, weights, 0.0).to(tl.float64))
    return count, total


def _border(logits, num_ids, peak, temperature, count, share, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """The bits of the largest value that at least ``count`` probabilities, with a sum of at least ``share``, reach.

    Each pass over the row determines two bits by testing three candidates.
    """
    border = tl.zeros([], tl.int32)
    for digit in range(15):  # the bits of a float32 in [0, 1], as an integer, are less than 2**30
        step = 1 << (28 - 2 * digit)
        low, middle, high = border + step, border + 2 * step, border + 3 * step
        low_count, middle_count, high_count = tl.zeros([], tl.int32), tl.zeros([], tl.int32), tl.zeros([], tl.int32)
        low_sum, middle_sum, high_sum = tl.zeros([], tl.float64), tl.zeros([], tl.float64), tl.zeros([], tl.float64)
        for start in range(0, num_ids, BLOCK):
            at = start + tl.arange(0, BLOCK)
            values = tl.load(logits + at, mask=at < num_ids, other=float("-inf")).to(tl.float32)
            weights = tl.where(at < num_ids, tl.exp((values - peak) / temperature), -1.0)
            bits = weights.to(tl.int32, bitcast=True)
            exact = weights.to(tl.float64)
            low_count += tl.sum((bits >= low).to(tl.int32))
            middle_count += tl.sum((bits >= middle).to(tl.int32))
            high_count += tl.sum((bits >= high).to(tl.int32))
            low_sum += tl.sum(tl.where(bits >= low, exact, 0.0))
            middle_sum += tl.sum(tl.where(bits >= middle, exact, 0.0))
            high_sum += tl.sum(tl.where(bits >= high, exact, 0.0))
        enough = ((low_count >= count) & (low_sum >= share)).to(tl.int32)
        enough += ((middle_count >= count) & (middle_sum >= share)).to(tl.int32)
        enough += ((high_count >= count) & (high_sum >= share)).to(tl.int32)
        border += enough * step
    return border


at_least = triton.jit(_at_least)
border_of = triton.jit(_border)


def _kept(logits, at, num_ids, peak, temperature, border, room, ties, least):  # type: ignore[no-untyped-def]
    """Return the relative probabilities of a block's tokens, and the number of ties up to the end of the block.

    The probabilities are float64, and 0 for tokens that must not be drawn. A tie is a token of the row whose relative
    probability, as float32, has the bits ``border``.

    room: number of ties to keep, those with the smallest ids. ties: number of ties before the block.
    """
    values = tl.load(logits + at, mask=at < num_ids, other=float("-inf")).to(tl.float32)
    weights = tl.where(at < num_ids, tl.exp((values - peak) / temperature), -1.0)
    bits = weights.to(tl.int32, bitcast=True)
    is_tie = (bits == border) & (at < num_ids)
    rank = ties + tl.cumsum(is_tie.to(tl.int32), 0)
    keep = ((bits > border) | (is_tie & (rank <= room))) & (weights >= least)
    return tl.where(keep, weights, 0.0).to(tl.float64), ties + tl.sum(is_tie.to(tl.int32))


kept_of = triton.jit(_kept)


def _draw(  # type: ignore[no-untyped-def]  # Triton values have no Python types
    logits, num_ids, peak, temperature, uniform, border, room, least, BLOCK: tl.constexpr
):
    """The first id at which the sum of the kept probabilities exceeds ``uniform`` times their total."""
    total = tl.zeros([], tl.float64)
    ties = tl.zeros([], tl.int32)
    for start in range(0, num_ids, BLOCK):
        at = start + tl.arange(0, BLOCK)
        kept, ties = kept_of(logits, at, num_ids, peak, temperature, border, room, ties, least)
        total += tl.sum(kept)
    running = tl.zeros([], tl.float64)
    ties = tl.zeros([], tl.int32)
    token = tl.zeros([], tl.int32) + num_ids
    last = tl.zeros([], tl.int32)
    for start in range(0, num_ids, BLOCK):
        at = start + tl.arange(0, BLOCK)
        kept, ties = kept_of(logits, at, num_ids, peak, temperature, border, room, ties, least)
        reached = (running + tl.cumsum(kept, 0) > uniform * total) & (kept > 0.0)
        token = tl.minimum(token, tl.min(tl.where(reached, at, num_ids)))
        last = tl.maximum(last, tl.max(tl.where(kept > 0.0, at, 0)))
        running += tl.sum(kept)
    return tl.where(token < num_ids, token, last)  # rounding may leave the sum below its target at the end


draw_of = triton.jit(_draw)


def _sample(  # type: ignore[no-untyped-def]  # Triton values have no Python types
    logits,
    tokens,
    temperatures,
    uniforms,
    limits,
    shares,
    least,
    num_sampled,
    row_stride,
    INVALID: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A program samples one row. A greedy row has temperature 0. ``num_sampled`` points to the number of ids."""
    row = tl.program_id(0).to(tl.int64)
    logits += row * row_stride
    num_ids = tl.load(num_sampled).to(tl.int32)
    peak = tl.full([], float("-inf"), tl.float32)
    token = tl.zeros([], tl.int32)
    num_nan = tl.zeros([], tl.int32)
    for start in range(0, num_ids, BLOCK):
        at = start + tl.arange(0, BLOCK)
        values = tl.load(logits + at, mask=at < num_ids, other=float("-inf")).to(tl.float32)
        num_nan += tl.sum((values != values).to(tl.int32))
        values = tl.where(values != values, float("-inf"), values)
        top = tl.max(values)
        first = tl.min(tl.where(values == top, at, num_ids))
        token = tl.where(top > peak, first, token)
        peak = tl.maximum(peak, top)
    invalid = (num_nan > 0) | (peak == float("inf")) | (peak == float("-inf"))
    temperature = tl.load(temperatures + row)
    if (temperature > 0.0) & (invalid == 0):
        limit, share = tl.load(limits + row).to(tl.int32), tl.load(shares + row)
        border = tl.zeros([], tl.int32)
        room = num_ids
        if limit < num_ids:
            border = border_of(logits, num_ids, peak, temperature, limit, 0.0, BLOCK)
            above, _ = at_least(logits, num_ids, peak, temperature, border + 1, BLOCK)
            room = limit - above
        if share < 1.0:
            _, total = at_least(logits, num_ids, peak, temperature, border + 1, BLOCK)
            total += room.to(tl.float64) * border.to(tl.float32, bitcast=True).to(tl.float64)
            wanted = share.to(tl.float64) * total
            inner = border_of(logits, num_ids, peak, temperature, 1, wanted, BLOCK)
            room = tl.where(inner > border, num_ids, room)
            border = tl.maximum(inner, border)
            _, total = at_least(logits, num_ids, peak, temperature, border + 1, BLOCK)
            missing = (wanted - total) / border.to(tl.float32, bitcast=True).to(tl.float64)
            room = tl.minimum(tl.maximum(tl.ceil(missing), 1.0).to(tl.int32), room)
        token = draw_of(
            logits, num_ids, peak, temperature, tl.load(uniforms + row), border, room, tl.load(least + row), BLOCK
        )
    tl.store(tokens + row, tl.where(invalid, INVALID, token).to(tl.int64))


sample = triton.jit(_sample)
