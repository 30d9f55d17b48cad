// Linear layers with packed bfloat16 weights: AMX tiles, AVX512-BF16, or float32 multiply-adds of widened weights.
//
// Weights are packed as [N / 16][K / 2][16][2]: the 32-bit lane n of a row holds the two weights k, k + 1 of output n.
// One layout serves all three: it is AMX's tile of 16 pairs, one operand of vdpbf16ps, and two shifts from float32.
// K is padded to a multiple of 32 and N to a multiple of 64 with zeros. An output's sum runs over k in an order that
// depends on the instruction set only, never on the number of rows: a row's result is the same in every batch.

#pragma once

#include "simd.h"

struct Linear {
    const uint16_t* weight;
    const float* bias;  // [N] or null
    int64_t n, k;       // k: padded
};

// What a linear layer reads: bfloat16 where the CPU multiplies it, else float32.
#if defined(__AMX_BF16__) || defined(__AVX512BF16__)
using Activation = uint16_t;
#else
using Activation = float;
#endif

constexpr int64_t kColumns = 64;  // of one unit of work
constexpr int64_t kRows = 32;     // of one block of results

using Block = float[kRows][kColumns];

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

// The four tiles side by side: [16][64].
inline void store_sums(float* to) {
    _tile_stored(0, to, kColumns * 4);
    _tile_stored(1, to + 16, kColumns * 4);
    _tile_stored(2, to + 32, kColumns * 4);
    _tile_stored(3, to + 48, kColumns * 4);
}

// sums[0..rows) = x[0..rows) times the 64 columns whose packed weights start at w. x: row stride ldx.
inline void multiply(const uint16_t* x, int64_t ldx, int64_t rows, const uint16_t* w, int64_t k, Block sums) {
    const int64_t block = k * 16, low = rows < 16 ? rows : 16, high = rows - low;
    configure_tiles(low, high);
    const int64_t stride = ldx * 2;
    if (high == 0) {
        zero_sums();
        for (int64_t i = 0; i < k; i += 32) {
            _tile_loadd(4, x + i, stride);
            _tile_loadd(6, w + i * 16, 64);
            _tile_dpbf16ps(0, 4, 6);
            _tile_loadd(7, w + block + i * 16, 64);
            _tile_dpbf16ps(1, 4, 7);
            _tile_loadd(5, w + 2 * block + i * 16, 64);
            _tile_dpbf16ps(2, 4, 5);
            _tile_loadd(6, w + 3 * block + i * 16, 64);
            _tile_dpbf16ps(3, 4, 6);
        }
        store_sums(&sums[0][0]);
        return;
    }
    for (int64_t half = 0; half < 2; ++half) {
        const uint16_t* left = w + half * 2 * block;
        zero_sums();
        for (int64_t i = 0; i < k; i += 32) {
            _tile_loadd(4, x + i, stride);
            _tile_loadd(6, left + i * 16, 64);
            _tile_dpbf16ps(0, 4, 6);
            _tile_loadd(7, left + block + i * 16, 64);
            _tile_dpbf16ps(1, 4, 7);
            _tile_loadd(5, x + 16 * ldx + i, stride);
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
        }
        _tile_stored(0, &sums[0][half * 32], kColumns * 4);
        _tile_stored(1, &sums[0][half * 32 + 16], kColumns * 4);
        _tile_stored(2, &sums[16][half * 32], kColumns * 4);
        _tile_stored(3, &sums[16][half * 32 + 16], kColumns * 4);
    }
}

#else

inline void release_tiles() {}

// Vectors that 16 outputs take.
constexpr int kVecs = 16 / kLanes;

// The products of a pair of weights per output with the pair of activations at x, added to sum.
inline Vec add_pair(Vec sum, const Activation* x, Ints pairs) {
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

template <int ROWS, int BLOCKS>
inline void multiply_part(const Activation* x, int64_t ldx, const uint16_t* w, int64_t k, float* sums) {
    Vec acc[ROWS][BLOCKS * kVecs] = {};
    for (int64_t i = 0; i < k; i += 2) {
        for (int b = 0; b < BLOCKS; ++b) {
            for (int v = 0; v < kVecs; ++v) {
                const Ints pairs = *reinterpret_cast<const Ints*>(w + b * k * 16 + i * 16 + v * 2 * kLanes);
                for (int r = 0; r < ROWS; ++r) {
                    Vec& sum = acc[r][b * kVecs + v];
                    sum = add_pair(sum, x + r * ldx + i, pairs);
                }
            }
        }
    }
    for (int r = 0; r < ROWS; ++r)
        for (int v = 0; v < BLOCKS * kVecs; ++v) store(sums + r * kColumns + v * kLanes, acc[r][v]);
}

// ROWS x BLOCKS sums stay in registers; rows that are left over are done in fewer at a time.
template <int ROWS, int BLOCKS>
inline void multiply_by(const Activation* x, int64_t ldx, int64_t rows, const uint16_t* w, int64_t k, float* sums) {
    int64_t r = 0;
    for (; r + ROWS <= rows; r += ROWS)
        for (int b = 0; b < 4; b += BLOCKS)
            multiply_part<ROWS, BLOCKS>(x + r * ldx, ldx, w + b * k * 16, k, sums + r * kColumns + b * 16);
    if constexpr (ROWS > 1) {
        constexpr int kMore = BLOCKS < 4 ? 2 * BLOCKS : 4;
        if (r < rows) multiply_by<ROWS / 2, kMore>(x + r * ldx, ldx, rows - r, w, k, sums + r * kColumns);
    }
}

inline void multiply(const Activation* x, int64_t ldx, int64_t rows, const uint16_t* w, int64_t k, Block sums) {
    multiply_by<4, kLanes == 16 ? 4 : 1>(x, ldx, rows, w, k, &sums[0][0]);
}

#endif
