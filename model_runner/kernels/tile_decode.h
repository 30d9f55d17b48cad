// ``attend`` on AMX tiles for a few query rows: decode tokens. The keys are the rows of the left operand, so that tiles
// load them from the pool as they are. Every sum has the order of tile_attention.h, and so the same bits.

#pragma once

#include "tile_attention.h"

#if !defined(__AMX_BF16__)

constexpr int64_t kFewRows = 0;

#else

constexpr int64_t kFewRows = 8;  // the most rows of this file's functions

// The tiles: 0 and 1 scores, 2 queries, 3 keys, 4 and 5 sums of values, 6 weights, 7 values.
inline void configure_decode(Tiles& tiles, int64_t rows) {
    const uint8_t few = static_cast<uint8_t>(rows), width = kFewRows * 4;
    tiles.configure({{16, 16, 16, 16, few, few, few, 16}, {width, width, width, 64, 64, 64, 64, 64}});
}

// out[dim / 32][16 pairs of dims][8 rows][2] = the queries in bfloat16, with zeros for missing rows and dims.
inline void lay_out_queries(const float* query, int64_t rows, int64_t dim, uint16_t* out) {
    std::memset(out, 0, (dim + kInner - 1) / kInner * kInner * kFewRows * 2);
    for (int64_t r = 0; r < rows; ++r)
        for (int64_t d = 0; d < dim; d += kLanes) {
            uint16_t numbers[kLanes];
            store(numbers, load(query + r * dim + d));
            for (int64_t i = 0; i < kLanes; i += 2) std::memcpy(out + (d + i) * kFewRows + 2 * r, numbers + i, 4);
        }
}

// The keys of 16 positions: in the pool, or copied if their distances or the head size do not fit into a tile.
struct Keys {
    const uint16_t* from;
    int64_t stride;  // bytes
};

inline Keys take_keys(const Cache& cache, int64_t kv_head, const int64_t* slots, int64_t padded_dim, uint16_t* copy) {
    const int64_t dim = cache.head_dim, stride = cache.kv_heads * dim;
    const uint16_t* from = cache.keys + kv_head * dim;
    if (cache.page_size % 16 == 0 && dim == padded_dim) return {from + slots[0] / 16 * 16 * stride, stride * 2};
    for (int64_t p = 0; p < 16; ++p) {
        std::memcpy(copy + p * padded_dim, from + slots[p] * stride, dim * 2);
        std::memset(copy + p * padded_dim + dim, 0, (padded_dim - dim) * 2);
    }
    return {copy, padded_dim * 2};
}

// scores[8][64] = the queries times the keys of a block. Scores of positions outside [begin, last] have no meaning.
inline void score_few(const Cache& cache, int64_t kv_head, const uint16_t* query, int64_t rows, const int64_t* slots,
                      int64_t begin, int64_t last, int64_t padded_dim, uint16_t* copy, float* scores) {
    alignas(64) float by_key[kSpan * kFewRows];
    for (int64_t p = std::max<int64_t>(begin, 0) / 32 * 32; p < kSpan && p <= last; p += 32) {
        // Tiles of 16 positions outside [begin, last] have the keys of other positions, which lie in the pool too.
        const int64_t* first = p + 16 > begin ? slots + p : slots + p + 16;
        const Keys low = take_keys(cache, kv_head, first, padded_dim, copy);
        const Keys high = take_keys(cache, kv_head, slots + p + 16, padded_dim, copy + 16 * padded_dim);
        _tile_zero(0);
        _tile_zero(1);
        for (int64_t d = 0; d < padded_dim; d += kInner) {
            _tile_loadd(2, query + d * kFewRows, kFewRows * 4);
            _tile_loadd(3, low.from + d, low.stride);
            _tile_dpbf16ps(0, 3, 2);
            _tile_loadd(3, high.from + d, high.stride);
            _tile_dpbf16ps(1, 3, 2);
        }
        _tile_stored(0, by_key + p * kFewRows, kFewRows * 4);
        _tile_stored(1, by_key + (p + 16) * kFewRows, kFewRows * 4);
    }
    const __m512i index = _mm512_set_epi32(120, 112, 104, 96, 88, 80, 72, 64, 56, 48, 40, 32, 24, 16, 8, 0);
    for (int64_t r = 0; r < rows; ++r)
        for (int64_t p = 0; p < kSpan; p += 16)
            _mm512_storeu_ps(scores + r * kSpan + p, _mm512_i32gather_ps(index, by_key + p * kFewRows + r, 4));
}

// sums[rows][padded_dim] = sums * scales + weights [rows][64] times the values of a block.
inline void add_few_values(const uint16_t* weights, const uint16_t* values, const float* scales, int64_t rows,
                           int64_t padded_dim, float* sums) {
    alignas(64) float weighed[2 * kFewRows * 16];
    for (int64_t d = 0; d < padded_dim; d += kInner, values += 2048) {
        _tile_zero(4);
        _tile_zero(5);
        for (int64_t half = 0; half < 2; ++half) {
            _tile_loadd(6, weights + half * kInner, kSpan * 2);
            _tile_loadd(7, values + half * 512, 64);
            _tile_dpbf16ps(4, 6, 7);
            _tile_loadd(7, values + 1024 + half * 512, 64);
            _tile_dpbf16ps(5, 6, 7);
        }
        _tile_stored(4, weighed, 128);
        _tile_stored(5, weighed + 16, 128);
        for (int64_t r = 0; r < rows; ++r)
            for (int64_t i = 0; i < kInner; i += kLanes) {
                float* to = sums + r * padded_dim + d + i;
                store(to, multiply_add(load(to), scales[r], load(weighed + r * 32 + i)));
            }
    }
}

// What one KV head has computed so far.
struct FewRows {
    uint16_t* query;
    float *sums, *most, *total;
};

// As ``attend``, for up to 8 rows of queries of each of ``num_heads`` KV heads, which follow each other in ``query`` and
// ``out``. The heads of a position are next to each other in the pool, so that together they are read in order.
inline void attend_few(const Cache& cache, int64_t kv_head, int64_t num_heads, int64_t group, const float* query,
                       const int32_t* pages, int64_t position, int64_t count, int64_t window, Activation* out,
                       int64_t out_stride, Tiles& tiles, TileScratch& s) {
    const int64_t dim = cache.head_dim, padded_dim = (dim + kInner - 1) / kInner * kInner;
    const int64_t rows = count * group, last = position + count - 1;
    const int64_t begin = window && position >= window ? position - window + 1 : 0;
    s.query.resize(num_heads * kFewRows * padded_dim), s.keys.resize(32 * padded_dim), s.values.resize(padded_dim * kSpan);
    s.sums.assign(num_heads * rows * padded_dim, 0.0f);
    s.most.assign(num_heads * rows, -INFINITY), s.total.assign(num_heads * rows, 0.0f);
    const auto head = [&](int64_t h) {
        return FewRows{&s.query[h * kFewRows * padded_dim], &s.sums[h * rows * padded_dim], &s.most[h * rows], &s.total[h * rows]};
    };
    for (int64_t h = 0; h < num_heads; ++h) lay_out_queries(query + h * rows * dim, rows, dim, head(h).query);
    configure_decode(tiles, rows);
    alignas(64) float scores[2][kFewRows * kSpan];
    alignas(64) uint16_t weights[kFewRows * kSpan];
    float scales[kFewRows];
    Slots slots{cache, pages, begin / kSpan * kSpan, last};
    int64_t now[kSpan], next[kSpan];
    slots.take(now);
    int64_t step = 0;
    const OwnSlots own_slots;
    const auto score = [&](int64_t h, const int64_t* of, int64_t first) {
        float* to = scores[step++ % 2];
        if (cache.quant_keys) {
            dequantize_block(cache, cache.quant_keys, kv_head + h, of, begin - first, last - first, s.plain_keys);
            score_few({s.plain_keys.data(), nullptr, kSpan, 1, dim}, 0, head(h).query, rows, own_slots.slots, begin - first,
                      last - first, padded_dim, s.keys.data(), to);
            return;
        }
        score_few(cache, kv_head + h, head(h).query, rows, of, begin - first, last - first, padded_dim, s.keys.data(), to);
    };
    const auto take_values = [&](int64_t h, const int64_t* of, int64_t first) {
        if (cache.quant_keys) {
            dequantize_block(cache, cache.quant_values, kv_head + h, of, begin - first, last - first, s.plain_values);
            lay_out_values({nullptr, s.plain_values.data(), kSpan, 1, dim}, 0, own_slots.slots, begin - first, last - first,
                           s.values.data());
            return;
        }
        lay_out_values(cache, kv_head + h, of, begin - first, last - first, s.values.data());
    };
    score(0, now, begin / kSpan * kSpan);
    for (int64_t first = begin / kSpan * kSpan; first <= last; first += kSpan) {
        slots.take(next);
        for (int64_t h = 0; h < num_heads; ++h) {
            const FewRows to = head(h);
            float* of_head = scores[(step + 1) % 2];  // computed last
            prefetch_block(cache, kv_head + h, next);
            // The next scores do not wait for what follows from these.
            if (h + 1 < num_heads)
                score(h + 1, now, first);
            else if (first + kSpan <= last)
                score(0, next, first + kSpan);
            else
                ++step;
            take_values(h, now, first);
            for (int64_t r = 0; r < rows; ++r) {
                const int64_t own = position + r / group, from = window && own >= window ? own - window + 1 : 0;
                if (first > own || first + kSpan <= from) {  // no position of the block is visible to this row
                    scales[r] = 1;
                    std::memset(weights + r * kSpan, 0, kSpan * 2);
                    continue;
                }
                scales[r] = weigh_row(of_head + r * kSpan, first, from, own, to.most[r], to.total[r],
                                      weights + r * kSpan);
            }
            add_few_values(weights, s.values.data(), scales, rows, padded_dim, to.sums);
        }
        std::memcpy(now, next, sizeof now);
    }
    for (int64_t h = 0; h < num_heads; ++h)
        for (int64_t r = 0; r < rows; ++r)
            write_sorted(head(h).sums + r * padded_dim, head(h).total[r], dim,
                         out + h * group * dim + r / group * out_stride + r % group * dim);
}

#endif
