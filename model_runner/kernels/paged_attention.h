// Causal attention over a page table. One job computes consecutive tokens of one item for one KV head.
//
// Every query passes over its context in blocks of 64 positions that start at multiples of 64, with a running maximum
// (online softmax, Milakov and Gimelshein 2018). Its operations depend on its own position and window only, so that a
// token's result is the same bit for bit in a decode step, in a prefill chunk of any size, and next to any other item.

#pragma once

#include <vector>

#include "packed_linear.h"
#include "quantized_rows.h"

// K and V of one layer: in bfloat16, [slots][kv_heads][head_dim], or as the rows of int8 of quantized_rows.h.
struct Cache {
    const uint16_t *keys, *values;  // null for int8
    int64_t page_size, kv_heads, head_dim;
    const int8_t *quant_keys = nullptr, *quant_values = nullptr;

    const int8_t* row(const int8_t* quants, int64_t slot, int64_t kv_head) const {
        return quants + (slot * kv_heads + kv_head) * row_bytes(head_dim);
    }
};

constexpr int64_t kSpan = 64;      // positions of a block
constexpr int64_t kQueries = 16;   // tokens of a job

struct AttentionScratch {
    std::vector<float> keys, values, scores, sums, most, total;
};

// scores[0..64) = the products of one query with 64 keys.
template <int DIM>
inline void score(const float* query, const float* keys, int64_t head_dim, float* scores) {
    const int64_t dim = DIM ? DIM : head_dim;
    for (int64_t first = 0; first < kSpan; first += kLanes) {
        Vec products[kLanes];
        for (int64_t p = 0; p < kLanes; ++p) {
            Vec sum{};
            for (int64_t d = 0; d < dim; d += kLanes) sum = multiply_add(load(query + d), load(keys + (first + p) * dim + d), sum);
            products[p] = sum;
        }
        store(scores + first, sums(products));
    }
}

// out[0..16 * PARTS) = out * scale + the weighted sum of the values.
template <int PARTS>
inline void add_values(const float* weights, const float* values, float scale, int64_t dim, float* out) {
    Vec acc[PARTS];
    for (int i = 0; i < PARTS; ++i) acc[i] = load(out + i * kLanes) * scale;
    for (int64_t p = 0; p < kSpan; ++p)
        for (int i = 0; i < PARTS; ++i) acc[i] = multiply_add(load(values + p * dim + i * kLanes), weights[p], acc[i]);
    for (int i = 0; i < PARTS; ++i) store(out + i * kLanes, acc[i]);
}

// Prefetches a block of K and V, whose pages are not consecutive in memory. Always inline: GCC 12 removes calls of a
// function that only prefetches.
__attribute__((always_inline)) inline void prefetch_block(const Cache& cache, int64_t kv_head, const int64_t* slots) {
    const int64_t dim = cache.head_dim;
    for (int64_t p = 0; p < kSpan; ++p) {
        if (cache.quant_keys) {
            const int8_t *key = cache.row(cache.quant_keys, slots[p], kv_head), *value = cache.row(cache.quant_values, slots[p], kv_head);
            for (int64_t i = 0; i < row_bytes(dim) + 63; i += 64) {
                __builtin_prefetch(key + std::min(i, row_bytes(dim) - 1), 0, 2);
                __builtin_prefetch(value + std::min(i, row_bytes(dim) - 1), 0, 2);
            }
            continue;
        }
        const int64_t at = (slots[p] * cache.kv_heads + kv_head) * dim;
        for (int64_t d = 0; d < dim; d += 32) {
            __builtin_prefetch(cache.keys + at + d, 0, 2);
            __builtin_prefetch(cache.values + at + d, 0, 2);
        }
    }
}

// The pool slots of a context, a block at a time; slots after the last position repeat the last slot.
struct Slots {
    const Cache& cache;
    const int32_t* pages;
    int64_t position, last;
    int64_t slot = 0;  // the last one that was taken

    void take(int64_t* slots) {
        const int64_t size = cache.page_size;
        int64_t page = position / size, within = position % size;
        for (int64_t p = 0; p < kSpan; ++p, ++position) {
            if (position <= last) {
                slot = pages[page] * size + within;
                if (++within == size) within = 0, ++page;
            }
            slots[p] = slot;
        }
    }
};

// Masks a row's scores, turns them into weights relative to its new maximum, and returns the factor on earlier sums.
template <typename T>
inline float weigh_row(float* scores, int64_t first, int64_t from, int64_t own, float& most, float& total,
                       T* weights) {
    if (first + kSpan - 1 > own || first < from)
        for (int64_t p = 0; p < kSpan; ++p)
            if (first + p > own || first + p < from) scores[p] = -INFINITY;
    Vec high = load(scores);
    for (int64_t p = kLanes; p < kSpan; p += kLanes) {
        const Vec next = load(scores + p);
        high = next > high ? next : high;
    }
    const float block_most = greatest(high), before = most;
    most = block_most > before ? block_most : before;
    Vec block_total{};
    for (int64_t p = 0; p < kSpan; p += kLanes) {
        const Vec exponentials = exp(load(scores + p) - most);
        block_total += exponentials;
        store(weights + p, exponentials);
    }
    const float scale = before == -INFINITY ? 0.0f : std::exp(before - most);
    total = multiply_add(total, scale, sum(block_total));
    return scale;
}

// query: [count * group][head_dim], scaled. pages: the item's row of the page table. position: that of the first
// token. window: 0 for none. out: [count] rows of ``out_stride`` elements, of which the group's heads are written.
template <int DIM>
void attend(const Cache& cache, int64_t kv_head, int64_t group, const float* query, const int32_t* pages,
            int64_t position, int64_t count, int64_t window, Activation* out, int64_t out_stride, AttentionScratch& s) {
    const int64_t dim = DIM ? DIM : cache.head_dim, rows = count * group, stride = cache.kv_heads * dim;
    s.keys.resize(kSpan * dim), s.values.resize(kSpan * dim), s.scores.resize(kSpan);
    s.sums.assign(rows * dim, 0.0f), s.most.assign(rows, -INFINITY), s.total.assign(rows, 0.0f);
    const int64_t last = position + count - 1;
    const int64_t begin = window && position >= window ? position - window + 1 : 0;
    Slots slots{cache, pages, begin / kSpan * kSpan, last};
    int64_t now[kSpan], next[kSpan];
    slots.take(next);
    for (int64_t first = begin / kSpan * kSpan; first <= last; first += kSpan) {
        std::memcpy(now, next, sizeof now);
        slots.take(next);
        prefetch_block(cache, kv_head, next);
        for (int64_t p = 0; p < kSpan; ++p) {
            float *key = &s.keys[p * dim], *value = &s.values[p * dim];
            if (first + p < begin || first + p > last) {
                for (int64_t d = 0; d < dim; d += kLanes) store(key + d, Vec{}), store(value + d, Vec{});
                continue;
            }
            if (cache.quant_keys) {
                take_row(cache.row(cache.quant_keys, now[p], kv_head), dim, key);
                take_row(cache.row(cache.quant_values, now[p], kv_head), dim, value);
                continue;
            }
            const int64_t offset = now[p] * stride + kv_head * dim;
            for (int64_t d = 0; d < dim; d += kLanes) store(key + d, load(cache.keys + offset + d));
            for (int64_t d = 0; d < dim; d += kLanes) store(value + d, load(cache.values + offset + d));
        }
        for (int64_t r = 0; r < rows; ++r) {
            const int64_t own = position + r / group, from = window && own >= window ? own - window + 1 : 0;
            if (first > own || first + kSpan <= from) continue;
            float* scores = s.scores.data();
            score<DIM>(query + r * dim, s.keys.data(), dim, scores);
            const float scale = weigh_row(scores, first, from, own, s.most[r], s.total[r], scores);
            float* sums_of_row = &s.sums[r * dim];
            int64_t d = 0;
            for (; d + 64 <= dim; d += 64) add_values<64 / kLanes>(scores, &s.values[d], scale, dim, sums_of_row + d);
            for (; d < dim; d += 16) add_values<16 / kLanes>(scores, &s.values[d], scale, dim, sums_of_row + d);
        }
    }
    for (int64_t r = 0; r < rows; ++r) {
        Activation* to = out + r / group * out_stride + r % group * dim;
        for (int64_t d = 0; d < dim; d += kLanes) store(to + d, load(&s.sums[r * dim + d]) / s.total[r]);
    }
}
