// Linear layers on AMX tiles. Quantized weights are dequantized to bfloat16 directly before they are multiplied.

#pragma once

#include <algorithm>

#include "quantized_weights.h"

constexpr int64_t kColumns = 64;  // outputs of one unit of work
constexpr int64_t kRows = 32;     // rows of one block of results

#if defined(__AMX_BF16__)

struct TileShapes {
    uint8_t rows[8], bytes[8];
};

// The tiles of one thread.
class Tiles {
public:
    void configure(const TileShapes& shapes) {
        if (is_configured_ && std::memcmp(&shapes, &shapes_, sizeof shapes) == 0) return;  // the instruction is slow
        shapes_ = shapes, is_configured_ = true;
        Config config;
        for (int i = 0; i < 8; ++i) config.rows[i] = shapes.rows[i], config.bytes[i] = shapes.bytes[i];
        asm volatile("" : : "r"(&config) : "memory");  // GCC 12 believes that the instruction reads 8 bytes only
        _tile_loadconfig(&config);
    }

    ~Tiles() {
        if (is_configured_) _tile_release();
    }

private:
    struct Config {
        uint8_t palette = 1, start_row = 0, reserved[14] = {};
        uint16_t bytes[16] = {};
        uint8_t rows[16] = {};
    };

    TileShapes shapes_{};
    bool is_configured_ = false;
};

// Tiles 0-3 hold sums, 4 activations, 5 activations or weights, 6 and 7 weights. low, high: rows of the two halves.
inline void configure_products(Tiles& tiles, int64_t low, int64_t high) {
    const uint8_t upper = static_cast<uint8_t>(low), lower = static_cast<uint8_t>(high ? high : low);
    const uint8_t fifth = static_cast<uint8_t>(high ? high : 16);
    tiles.configure({{upper, upper, lower, lower, upper, fifth, 16, 16}, {64, 64, 64, 64, 64, 64, 64, 64}});
}

inline void zero_sums() {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
}

// Stores the four tiles side by side: [16][64].
inline void store_sums(float* to) {
    _tile_stored(0, to, kColumns * 4);
    _tile_stored(1, to + 16, kColumns * 4);
    _tile_stored(2, to + 32, kColumns * 4);
    _tile_stored(3, to + 48, kColumns * 4);
}

// Adds the products of up to 16 rows with 4 blocks. x: [rows][stride bytes]. w: each [k / 2][16][2].
inline void add_products_of_16(const uint16_t* x, int64_t stride, const uint16_t* const* w, int64_t k) {
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
}

// Adds the products of 17 to 32 rows with 2 blocks.
inline void add_products_of_32(const uint16_t* x, int64_t stride, const uint16_t* const* w, int64_t k) {
    const uint16_t* lower = x + 8 * stride;
    for (int64_t i = 0; i < k; i += 32) {
        _tile_loadd(4, x + i, stride);
        _tile_loadd(6, w[0] + i * 16, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, w[1] + i * 16, 64);
        _tile_dpbf16ps(1, 4, 7);
        _tile_loadd(5, lower + i, stride);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
}

// Dequantizes ``count`` groups of a block to [pairs of inputs][16 outputs][2].
template <int64_t KIND>
__attribute__((noinline)) inline void dequantize(const uint8_t* block, int64_t first, int64_t count, uint16_t* to) {
    using F = Format<KIND>;
    // Outputs 0-7 and 8-15, each twice.
    const __m512i low = _mm512_set_epi32(7, 7, 6, 6, 5, 5, 4, 4, 3, 3, 2, 2, 1, 1, 0, 0);
    const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
    // Bytes 4 * n + i of a row for two inputs i of each output n, widened to 32 bits.
    const __m512i bytes = _mm512_add_epi32(_mm512_slli_epi32(low, 2), _mm512_set4_epi32(1, 0, 1, 0));
    const __mmask64 lowest = 0x1111111111111111;
    const auto widen = [&](Words row, int from) {
        const __m512i index = _mm512_add_epi32(bytes, _mm512_set1_epi32(from));
        return _mm512_cvtepi32_ps(_mm512_maskz_permutexvar_epi8(lowest, index, reinterpret_cast<__m512i>(row)));
    };
    for (int64_t group = first; group < first + count; ++group, to += kElements) {
        const uint8_t* quants = F::quants_of(block, group);
        __m512 scales[F::parts][2], offsets[F::parts][2];
        for (int part = 0; part < F::parts; ++part) {
            const Vec scale = F::scale(block, group, part, 0);
            Vec offset = scale * static_cast<float>(-F::zero);
            if constexpr (F::has_min) offset = F::minimum(block, group, 0);
            scales[part][0] = _mm512_permutexvar_ps(low, reinterpret_cast<__m512>(scale));
            scales[part][1] = _mm512_permutexvar_ps(high, reinterpret_cast<__m512>(scale));
            offsets[part][0] = _mm512_permutexvar_ps(low, reinterpret_cast<__m512>(offset));
            offsets[part][1] = _mm512_permutexvar_ps(high, reinterpret_cast<__m512>(offset));
        }
#pragma GCC unroll 8
        for (int quad = 0; quad < kQuads; ++quad) {
            const Words row = F::row(quants, quad, 0);
            const int part = quad * F::parts / kQuads;
#pragma GCC unroll 2
            for (int pair = 0; pair < 2; ++pair) {
                // Only the sum with a minimum is rounded.
                const __m512 left = _mm512_fmadd_ps(widen(row, 2 * pair), scales[part][0], offsets[part][0]);
                const __m512 right = _mm512_fmadd_ps(widen(row, 2 * pair + 32), scales[part][1], offsets[part][1]);
                _mm512_storeu_si512(to + (2 * quad + pair) * 32, reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(right, left)));
            }
        }
    }
}

// At namespace scope: a static variable of an inline function would be shared between libraries for different CPUs.
constexpr void (*kDequantize[])(const uint8_t*, int64_t, int64_t, uint16_t*) = {
    nullptr,           dequantize<kQ8_0>, dequantize<kQ4_0>, dequantize<kQ4_1>, dequantize<kQ5_0>,
    dequantize<kQ5_1>, dequantize<kQ4_K>, dequantize<kQ5_K>, dequantize<kQ6_K>,
};

// Returns the weights of some groups in bfloat16, after dequantizing them to ``buffer`` if they are quantized.
inline const uint16_t* take_groups(const Block& block, int64_t first, int64_t count, uint16_t* buffer) {
    if (block.kind == kBfloat16) return reinterpret_cast<const uint16_t*>(block.data) + first * kElements;
    kDequantize[block.kind](block.data, first, count, buffer);
    return buffer;
}

// sums[rows][64] = up to 32 rows times the 64 outputs of 4 blocks. step: the number of groups that are taken at a time.
// buffer: 4 * step groups.
__attribute__((noinline)) inline void multiply(const uint16_t* x, int64_t rows, const Block* blocks, int64_t k,
                                               int64_t step, uint16_t* buffer, Tiles& tiles, float* sums) {
    const int64_t low = std::min<int64_t>(rows, 16), high = rows - low, groups = k / kGroup;
    const int at_once = high ? 2 : 4;  // blocks
    configure_products(tiles, low, high);
    for (int first = 0; first < 4; first += at_once) {
        zero_sums();
        for (int64_t group = 0; group < groups; group += step) {
            const int64_t count = std::min(step, groups - group);
            const uint16_t* w[4];
            for (int b = 0; b < at_once; ++b)
                w[b] = take_groups(blocks[first + b], group, count, buffer + b * step * kElements);
            const auto add = high ? add_products_of_32 : add_products_of_16;
            add(x + group * kGroup, k * 2, w, count * kGroup);
        }
        if (!high) return store_sums(sums);
        float *upper = sums + first * 16, *lower = upper + 16 * kColumns;
        _tile_stored(0, upper, kColumns * 4);
        _tile_stored(1, upper + 16, kColumns * 4);
        _tile_stored(2, lower, kColumns * 4);
        _tile_stored(3, lower + 16, kColumns * 4);
    }
}

#endif
