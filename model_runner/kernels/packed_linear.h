// Linear layers with packed weights: AMX tiles, AVX512-BF16, or float32 multiply-adds.
//
// Weights are packed in blocks of 16 outputs. In bfloat16 a block is [K / 2][16][2]: the 32-bit lane n of a row holds the
// two weights k, k + 1 of output n. All three use this layout: it is AMX's tile of 16 pairs, one operand of vdpbf16ps,
// and two shifts from float32. Quantized blocks are dequantized part by part while they are multiplied. K is padded
// to a multiple of 32 with zeros. An output's sum runs over k in an order that depends on the instruction set only, never
// on the number of rows: a row's result is the same in every batch.

#pragma once

#include <algorithm>
#include <cstdlib>
#include <memory>

#include "quantized_weights.h"

constexpr int64_t kColumns = 64;  // outputs of one unit of work
constexpr int64_t kRows = 32;     // rows of one block of results

struct Linear {
    const Block* blocks;  // their number is a multiple of 4; blocks after the last output repeat another block
    const float* bias;    // [N] or null
    int64_t n, k;         // k includes the padding
};

#if defined(__AMX_BF16__)

struct TileConfig {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t bytes[16] = {};
    uint8_t rows[16] = {};
};

// Tiles 0-3 hold sums, 4 and 5 activations, 6 and 7 weights. low, high: rows of the two halves of a block.
inline void configure_tiles(int64_t low, int64_t high) {
    TileConfig config;
    for (int i = 0; i < 8; ++i) config.bytes[i] = 64;
    const int64_t rows[8] = {low, low, high ? high : low, high ? high : low, low, high ? high : 16, 16, 16};
    for (int i = 0; i < 8; ++i) config.rows[i] = static_cast<uint8_t>(rows[i]);
    _tile_loadconfig(&config);
}

inline void release_tiles() { _tile_release(); }

inline void zero_sums() {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
}

// Loads the first pair of tiles from ``low`` and the second pair from ``high``.
inline void load_sums(const float* low, const float* high) {
    _tile_loadd(0, low, kColumns * 4);
    _tile_loadd(1, low + 16, kColumns * 4);
    _tile_loadd(2, high, kColumns * 4);
    _tile_loadd(3, high + 16, kColumns * 4);
}

// Stores the four tiles side by side: [16][64].
inline void store_sums(float* to) {
    _tile_stored(0, to, kColumns * 4);
    _tile_stored(1, to + 16, kColumns * 4);
    _tile_stored(2, to + 32, kColumns * 4);
    _tile_stored(3, to + 48, kColumns * 4);
}

// sums[rows][64] = x[0..rows) times the 64 outputs of the 4 blocks at w; added to sums if ``more``. x: row stride ldx.
__attribute__((noinline)) inline void multiply(const uint16_t* x, int64_t ldx, int64_t rows, const uint16_t* const* w,
                                               int64_t k, bool more, float* sums) {
    const int64_t low = rows < 16 ? rows : 16, high = rows - low;
    configure_tiles(low, high);
    const int64_t stride = ldx * 2;
    if (high == 0) {
        more ? load_sums(sums, sums + 32) : zero_sums();
        for (int64_t i = 0; i < k; i += 32) {
            _tile_loadd(4, x + i, stride);
            _tile_loadd(6, w[0] + i * 16, 64);
            _tile_dpbf16ps(0, 4, 6);
            _tile_loadd(7, w[1] + i * 16, 64);
            _tile_dpbf16ps(1, 4, 7);
            _tile_loadd(5, w[2] + i * 16, 64);
            _tile_dpbf16ps(2, 4, 5);
            _tile_loadd(6, w[3] + i * 16, 64);
            _tile_dpbf16ps(3, 4, 6);
        }
        store_sums(sums);
        return;
    }
    for (int64_t half = 0; half < 2; ++half) {
        const uint16_t *left = w[2 * half], *right = w[2 * half + 1];
        float *upper = sums + half * 32, *lower = upper + 16 * kColumns;
        more ? load_sums(upper, lower) : zero_sums();
        for (int64_t i = 0; i < k; i += 32) {
            _tile_loadd(4, x + i, stride);
            _tile_loadd(6, left + i * 16, 64);
            _tile_dpbf16ps(0, 4, 6);
            _tile_loadd(7, right + i * 16, 64);
            _tile_dpbf16ps(1, 4, 7);
            _tile_loadd(5, x + 16 * ldx + i, stride);
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
        }
        _tile_stored(0, upper, kColumns * 4);
        _tile_stored(1, upper + 16, kColumns * 4);
        _tile_stored(2, lower, kColumns * 4);
        _tile_stored(3, lower + 16, kColumns * 4);
    }
}

#else

inline void release_tiles() {}

// The number of vectors that hold 16 outputs.
constexpr int kVecs = 16 / kLanes;

// The products of the inputs k, k + 1 of kLanes outputs with the pair of activations at x, added to sum.
inline Vec add_pair(Vec sum, const Activation* x, const uint16_t* w) {
    const Ints pairs = *reinterpret_cast<const Ints*>(w);
#if defined(__AVX512BF16__)
    int32_t pair;
    std::memcpy(&pair, x, 4);
    return reinterpret_cast<Vec>(_mm512_dpbf16_ps(reinterpret_cast<__m512>(sum),
                                                  reinterpret_cast<__m512bh>(_mm512_set1_epi32(pair)),
                                                  reinterpret_cast<__m512bh>(pairs)));
#else
    sum += x[0] * reinterpret_cast<Vec>(pairs << 16);
    return sum + x[1] * reinterpret_cast<Vec>(pairs & static_cast<int32_t>(0xffff0000));
#endif
}

inline Vec add_pair(Vec sum, const float* x, const float* w) {
    sum += x[0] * load(w);
    return sum + x[1] * load(w + 16);
}

// The distance between the weights of kLanes outputs and those of the next kLanes outputs.
template <typename W>
constexpr int kStep = sizeof(W) == 2 ? 2 * kLanes : kLanes;

template <int ROWS, int BLOCKS, typename W>
inline void multiply_part(const Activation* x, int64_t ldx, const W* const* w, int64_t k, bool more, float* sums) {
    Vec acc[ROWS][BLOCKS * kVecs] = {};
    if (more)
        for (int r = 0; r < ROWS; ++r)
            for (int v = 0; v < BLOCKS * kVecs; ++v) acc[r][v] = load(sums + r * kColumns + v * kLanes);
    for (int64_t i = 0; i < k; i += 2) {
        for (int b = 0; b < BLOCKS; ++b) {
            for (int v = 0; v < kVecs; ++v) {
                for (int r = 0; r < ROWS; ++r) {
                    Vec& sum = acc[r][b * kVecs + v];
                    sum = add_pair(sum, x + r * ldx + i, w[b] + i * 16 + v * kStep<W>);
                }
            }
        }
    }
    for (int r = 0; r < ROWS; ++r)
        for (int v = 0; v < BLOCKS * kVecs; ++v) store(sums + r * kColumns + v * kLanes, acc[r][v]);
}

// ROWS x BLOCKS sums stay in registers; the remaining rows are computed with smaller ROWS.
template <int ROWS, int BLOCKS, typename W>
inline void multiply_by(const Activation* x, int64_t ldx, int64_t rows, const W* const* w, int64_t k, bool more,
                        float* sums) {
    int64_t r = 0;
    for (; r + ROWS <= rows; r += ROWS)
        for (int b = 0; b < 4; b += BLOCKS)
            multiply_part<ROWS, BLOCKS>(x + r * ldx, ldx, w + b, k, more, sums + r * kColumns + b * 16);
    if constexpr (ROWS > 1) {
        constexpr int kMore = BLOCKS < 4 ? 2 * BLOCKS : 4;
        if (r < rows) multiply_by<ROWS / 2, kMore>(x + r * ldx, ldx, rows - r, w, k, more, sums + r * kColumns);
    }
}

template <typename W>
__attribute__((noinline)) inline void multiply(const Activation* x, int64_t ldx, int64_t rows, const W* const* w,
                                               int64_t k, bool more, float* sums) {
    multiply_by<4, kLanes == 16 ? 4 : 1>(x, ldx, rows, w, k, more, sums);
}

#endif

struct Free {
    void operator()(void* p) const { std::free(p); }
};

template <typename T>
class Buffer {
public:
    // Zeroed when it grows: the values after a row's last one must be finite.
    T* at_least(int64_t count) {
        if (count > size_) {
            const int64_t bytes = (count * sizeof(T) + 63) / 64 * 64;
            data_.reset(static_cast<T*>(std::aligned_alloc(64, bytes)));
            std::memset(data_.get(), 0, bytes);
            size_ = count;
        }
        return data_.get();
    }

private:
    std::unique_ptr<T, Free> data_;
    int64_t size_ = 0;
};

// The buffers of one thread for linear layers.
struct LinearScratch {
    Buffer<float> sums;
    Buffer<Activation> widened;  // [4 blocks][inputs][16]
};

// Inputs that are dequantized at a time: with few rows they stay in the L1 cache, with many rows in the L2 cache.
constexpr int64_t kFewInputs = kPairs ? 128 : 64, kManyInputs = kPairs ? 2048 : 1024;

// The products of ``count`` rows with the 64 outputs of 4 blocks. take(row, sums) receives each row once.
template <typename Take>
inline void multiply_unit(const Block* blocks, int64_t k, const Activation* x, int64_t count, LinearScratch& s,
                          const Take& take) {
    bool is_plain = true;
    for (int b = 0; b < 4; ++b) is_plain = is_plain && blocks[b].kind == kBfloat16;
    const int64_t step = is_plain ? k : std::min(k, count > kRows ? kManyInputs : kFewInputs);
    const bool is_single = step == k || count <= kRows;
    float* all_sums = s.sums.at_least((is_single ? kRows : count) * kColumns);
    Activation* buffer = is_plain ? nullptr : s.widened.at_least(kColumns * step);
    for (int64_t first = 0; first < k; first += step) {
        const int64_t size = std::min(step, k - first);
        const uint16_t* stored[4];
        const Activation* widened[4];
        for (int b = 0; b < 4; ++b) {
            stored[b] = reinterpret_cast<const uint16_t*>(blocks[b].data);
            widened[b] = buffer + b * step * 16;
            if (!is_plain) widen_block(blocks[b], first / kGroup, size / kGroup, buffer + b * step * 16);
        }
        for (int64_t row = 0; row < count; row += kRows) {
            const int64_t part = std::min(kRows, count - row);
            float* sums = all_sums + (is_single ? 0 : row * kColumns);
            const Activation* from = x + row * k + first;
            is_plain ? multiply(from, k, part, stored, size, first > 0, sums)
                     : multiply(from, k, part, widened, size, first > 0, sums);
            if (first + size < k) continue;
            for (int64_t r = 0; r < part; ++r) take(row + r, sums + r * kColumns);
        }
    }
}
