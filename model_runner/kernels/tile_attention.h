// ``attend`` of paged_attention.h on AMX tiles: the products of queries and keys, and of weights and values, in bfloat16.

#pragma once

#include "paged_attention.h"

#if defined(__AMX_BF16__)

constexpr int64_t kInner = 32;  // numbers that one tile instruction sums over

// out[c] = element c of each of the 16 rows.
inline void transpose(const __m512i* rows, __m512i* out) {
    __m512i pairs[16], quads[16];
    for (int i = 0; i < 16; i += 2) {
        pairs[i] = _mm512_unpacklo_epi32(rows[i], rows[i + 1]);
        pairs[i + 1] = _mm512_unpackhi_epi32(rows[i], rows[i + 1]);
    }
    for (int i = 0; i < 16; i += 4) {
        quads[i] = _mm512_unpacklo_epi64(pairs[i], pairs[i + 2]);
        quads[i + 1] = _mm512_unpackhi_epi64(pairs[i], pairs[i + 2]);
        quads[i + 2] = _mm512_unpacklo_epi64(pairs[i + 1], pairs[i + 3]);
        quads[i + 3] = _mm512_unpackhi_epi64(pairs[i + 1], pairs[i + 3]);
    }
    for (int c = 0; c < 4; ++c) {
        const __m512i low0 = _mm512_shuffle_i32x4(quads[c], quads[4 + c], 0x44);
        const __m512i low1 = _mm512_shuffle_i32x4(quads[8 + c], quads[12 + c], 0x44);
        const __m512i high0 = _mm512_shuffle_i32x4(quads[c], quads[4 + c], 0xee);
        const __m512i high1 = _mm512_shuffle_i32x4(quads[8 + c], quads[12 + c], 0xee);
        out[c] = _mm512_shuffle_i32x4(low0, low1, 0x88);
        out[4 + c] = _mm512_shuffle_i32x4(low0, low1, 0xdd);
        out[8 + c] = _mm512_shuffle_i32x4(high0, high1, 0x88);
        out[12 + c] = _mm512_shuffle_i32x4(high0, high1, 0xdd);
    }
}

struct TileScratch {
    std::vector<uint16_t> query;   // [rows, padded to 16][padded dim]
    std::vector<uint16_t> keys;    // [padded dim / 32][4 tiles of 16 keys][16 pairs of dims][16 keys][2]
    std::vector<uint16_t> values;  // of ``lay_out_values``, padded to 64 dims
    std::vector<float> sums, most, total;
    std::vector<uint16_t> plain_keys, plain_values;  // [64][dim], dequantized
};

// A block of K or V that was stored in int8, in bfloat16: [64][dim]. Positions outside [begin, last] become zeros.
inline void dequantize_block(const Cache& cache, const int8_t* quants, int64_t kv_head, const int64_t* slots, int64_t begin,
                             int64_t last, std::vector<uint16_t>& to) {
    const int64_t dim = cache.head_dim;
    to.resize(kSpan * dim);
    for (int64_t p = 0; p < kSpan; ++p) {
        if (p >= begin && p <= last)
            take_row(cache.row(quants, slots[p], kv_head), dim, &to[p * dim]);
        else
            std::memset(&to[p * dim], 0, dim * 2);
    }
}

// The slots of a dequantized block.
struct OwnSlots {
    int64_t slots[kSpan];
    OwnSlots() {
        for (int64_t p = 0; p < kSpan; ++p) slots[p] = p;
    }
};

// The values of one 64-position block: [dim / 32][2][2 tiles of 32 keys][16 pairs of keys][16 dims][2]. Dims are in the
// order of two unpack instructions, which ``sorted`` reverses. Positions outside [begin, last] become zeros.
inline void lay_out_values(const Cache& cache, int64_t kv_head, const int64_t* slots, int64_t begin, int64_t last,
                           uint16_t* to) {
    const int64_t dim = cache.head_dim, stride = cache.kv_heads * dim;
    for (int64_t p = 0; p < kSpan; p += 2) {
        const uint16_t* even = cache.values + slots[p] * stride + kv_head * dim;
        const uint16_t* odd = cache.values + slots[p + 1] * stride + kv_head * dim;
        for (int64_t d = 0; d < dim; d += kInner) {
            const __mmask32 mask = dim - d >= kInner ? ~0u : 0xffff;
            const __m512i left = _mm512_maskz_loadu_epi16(p >= begin && p <= last ? mask : 0, even + d);
            const __m512i right = _mm512_maskz_loadu_epi16(p + 1 >= begin && p < last ? mask : 0, odd + d);
            uint16_t* tile = to + (d / kInner * 4 + p / kInner) * 512 + p % kInner / 2 * 32;
            _mm512_storeu_si512(tile, _mm512_unpacklo_epi16(left, right));
            _mm512_storeu_si512(tile + 1024, _mm512_unpackhi_epi16(left, right));
        }
    }
}

// Writes sums of values, divided by ``total``, with the dims of ``lay_out_values`` in their own order.
inline void write_sorted(const float* sums, float total, int64_t dim, uint16_t* to) {
    const __m512i low = _mm512_set_epi32(23, 22, 21, 20, 7, 6, 5, 4, 19, 18, 17, 16, 3, 2, 1, 0);
    const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
    for (int64_t d = 0; d < dim; d += kInner) {
        const __m512 left = _mm512_loadu_ps(sums + d), right = _mm512_loadu_ps(sums + d + 16);
        store(to + d, reinterpret_cast<Vec>(_mm512_permutex2var_ps(left, low, right)) / total);
        if (d + 16 < dim) store(to + d + 16, reinterpret_cast<Vec>(_mm512_permutex2var_ps(left, high, right)) / total);
    }
}

// One 64-position block of K and V of one KV head, laid out for tiles. Positions outside [begin, last] become zeros.
inline void lay_out(const Cache& cache, int64_t kv_head, const int64_t* slots, int64_t first, int64_t begin,
                    int64_t last, const int64_t* next, TileScratch& s) {
    const int64_t dim = cache.head_dim, stride = cache.kv_heads * dim;
    const auto is_in = [&](int64_t p) { return first + p >= begin && first + p <= last; };
    prefetch_block(cache, kv_head, next);
    for (int64_t d = 0; d < dim; d += kInner) {
        const __mmask32 mask = dim - d >= kInner ? ~0u : (1u << (dim - d)) - 1;
        for (int64_t tile = 0; tile < kSpan; tile += 16) {
            __m512i rows[16], columns[16];
            for (int64_t p = 0; p < 16; ++p) {
                const uint16_t* key = cache.keys + slots[tile + p] * stride + kv_head * dim + d;
                rows[p] = _mm512_maskz_loadu_epi16(is_in(tile + p) ? mask : 0, key);
            }
            transpose(rows, columns);
            uint16_t* to = &s.keys[(d / kInner * 4 + tile / 16) * 512];
            for (int64_t pair = 0; pair < 16; ++pair) _mm512_storeu_si512(to + pair * 32, columns[pair]);
        }
    }
    lay_out_values(cache, kv_head, slots, begin - first, last - first, s.values.data());
}

// scores[16][64] = query rows times the keys of the block.
inline void score_tiles(const uint16_t* query, int64_t padded_dim, const uint16_t* keys, float* scores) {
    zero_sums();
    for (int64_t d = 0; d < padded_dim; d += kInner) {
        const uint16_t* tiles = keys + d / kInner * 4 * 512;
        _tile_loadd(4, query + d, padded_dim * 2);
        _tile_loadd(5, tiles, 64);
        _tile_dpbf16ps(0, 4, 5);
        _tile_loadd(6, tiles + 512, 64);
        _tile_dpbf16ps(1, 4, 6);
        _tile_loadd(7, tiles + 1024, 64);
        _tile_dpbf16ps(2, 4, 7);
        _tile_loadd(5, tiles + 1536, 64);
        _tile_dpbf16ps(3, 4, 5);
    }
    store_sums(scores);
}

// out[16][64] = weights [16][64] times the values of 64 dims.
inline void weigh_tiles(const uint16_t* weights, const uint16_t* values, float* out) {
    zero_sums();
    for (int64_t half = 0; half < 2; ++half) {
        const uint16_t* tiles = values + half * 512;
        _tile_loadd(4, weights + half * kInner, kSpan * 2);
        _tile_loadd(5, tiles, 64);
        _tile_dpbf16ps(0, 4, 5);
        _tile_loadd(6, tiles + 1024, 64);
        _tile_dpbf16ps(1, 4, 6);
        _tile_loadd(7, tiles + 2048, 64);
        _tile_dpbf16ps(2, 4, 7);
        _tile_loadd(5, tiles + 3072, 64);
        _tile_dpbf16ps(3, 4, 5);
    }
    store_sums(out);
}

inline void attend_with_tiles(const Cache& cache, int64_t kv_head, int64_t group, const float* query,
                              const int32_t* pages, int64_t position, int64_t count, int64_t window, Activation* out,
                              int64_t out_stride, Tiles& tiles, TileScratch& s) {
    const int64_t dim = cache.head_dim, padded_dim = (dim + kInner - 1) / kInner * kInner;
    const int64_t rows = count * group, last = position + count - 1;
    const int64_t begin = window && position >= window ? position - window + 1 : 0;
    s.query.assign((rows + 15) / 16 * 16 * padded_dim, 0);
    for (int64_t r = 0; r < rows; ++r)
        for (int64_t d = 0; d < dim; d += kLanes) store(&s.query[r * padded_dim + d], load(query + r * dim + d));
    s.keys.resize(padded_dim * kSpan), s.values.resize((dim + 63) / 64 * 64 * kSpan);
    s.sums.assign(rows * padded_dim, 0.0f), s.most.assign(rows, -INFINITY), s.total.assign(rows, 0.0f);
    alignas(64) float scores[16 * kSpan], weighed[16 * 64];
    alignas(64) uint16_t weights[16 * kSpan];
    float scales[16];
    Slots slots{cache, pages, begin / kSpan * kSpan, last};
    int64_t now[kSpan], next[kSpan];
    const OwnSlots own_slots;
    slots.take(next);
    for (int64_t first = begin / kSpan * kSpan; first <= last; first += kSpan) {
        std::memcpy(now, next, sizeof now);
        slots.take(next);
        if (cache.quant_keys) {
            prefetch_block(cache, kv_head, next);
            dequantize_block(cache, cache.quant_keys, kv_head, now, begin - first, last - first, s.plain_keys);
            dequantize_block(cache, cache.quant_values, kv_head, now, begin - first, last - first, s.plain_values);
            const Cache plain{s.plain_keys.data(), s.plain_values.data(), kSpan, 1, dim};
            lay_out(plain, 0, own_slots.slots, first, begin, last, own_slots.slots, s);
        } else {
            lay_out(cache, kv_head, now, first, begin, last, next, s);
        }
        for (int64_t tile = 0; tile < rows; tile += 16) {
            const int64_t num = std::min<int64_t>(16, rows - tile);
            const int64_t greatest_own = position + (tile + num - 1) / group, least_own = position + tile / group;
            if (first > greatest_own || (window && first + kSpan <= least_own - window + 1)) continue;
            configure_products(tiles, num, 0);
            score_tiles(&s.query[tile * padded_dim], padded_dim, s.keys.data(), scores);
            for (int64_t r = 0; r < num; ++r) {
                const int64_t own = position + (tile + r) / group, from = window && own >= window ? own - window + 1 : 0;
                if (first > own || first + kSpan <= from) {  // no position of the block is visible to this row
                    scales[r] = 1;
                    std::memset(weights + r * kSpan, 0, kSpan * 2);
                    continue;
                }
                scales[r] = weigh_row(scores + r * kSpan, first, from, own, s.most[tile + r], s.total[tile + r],
                                      weights + r * kSpan);
            }
            for (int64_t d = 0; d < padded_dim; d += 64) {
                weigh_tiles(weights, &s.values[d / 16 * 1024], weighed);
                for (int64_t r = 0; r < num; ++r) {
                    float* to = &s.sums[(tile + r) * padded_dim + d];
                    for (int64_t i = 0; i < std::min<int64_t>(64, padded_dim - d); i += kLanes)
                        store(to + i, multiply_add(load(to + i), scales[r], load(weighed + r * 64 + i)));
                }
            }
        }
    }
    for (int64_t r = 0; r < rows; ++r) {
        write_sorted(&s.sums[r * padded_dim], s.total[r], dim, out + r / group * out_stride + r % group * dim);
    }
}

#endif
