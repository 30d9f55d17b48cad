// Quantized weights in memory, and their expansion into bytes and factors.
//
// A block holds 16 outputs, as records of 32 inputs (kinds with superblocks: a header of 256 inputs before each 8). A
// record is a header of scales, [16] each, and the quants: [inputs / 4][16 outputs][4 inputs], one unsigned byte each
// once they are expanded. A row of 64 bytes serves all products of bytes: vpdpbusd and an AMX tile take it as it is.
// Quants of 4 bits are stored as rows 0-3 in the low and rows 4-7 in the high nibbles, followed by the bits above them.

#pragma once

#include "simd.h"

// Mirrors ``Kind`` of packed_weights.py.
enum Kind : int64_t { kBfloat16, kQ8_0, kQ4_0, kQ4_1, kQ5_0, kQ5_1, kQ4_K, kQ5_K, kQ6_K };

// The packed weights of 16 outputs.
struct Block {
    const uint8_t* data;
    int64_t kind;
};

constexpr int64_t kGroup = 32;              // inputs of a record
constexpr int64_t kElements = 16 * kGroup;  // weights of a record
constexpr int64_t kQuads = kGroup / 4;      // rows of a record, 4 inputs each
constexpr int kVecs = 16 / kLanes;          // number of vectors that hold a number for each of 16 outputs

using Words = uint16_t __attribute__((vector_size(4 * kLanes), aligned(2), may_alias));  // 4 * kLanes bytes

inline Words load_words(const uint8_t* p) { return *reinterpret_cast<const Words*>(p); }

inline float widen_half(uint16_t x) {
#if defined(__F16C__)
    return _cvtsh_ss(x);
#else
    const uint32_t exponent = x >> 10 & 31, fraction = x & 1023;
    float value = exponent == 31 ? (fraction ? NAN : INFINITY)
                  : exponent     ? std::ldexp(static_cast<float>(fraction + 1024), static_cast<int>(exponent) - 25)
                                 : std::ldexp(static_cast<float>(fraction), -24);
    return x >> 15 ? -value : value;
#endif
}

// kLanes numbers in float16.
inline Vec load_halves(const uint8_t* p) {
#if defined(__AVX512F__)
    return reinterpret_cast<Vec>(_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))));
#elif defined(__F16C__) && defined(__AVX2__)
    return reinterpret_cast<Vec>(_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
#else
    Vec out;
    for (int i = 0; i < kLanes; ++i) {
        uint16_t half;
        std::memcpy(&half, p + 2 * i, 2);
        out[i] = widen_half(half);
    }
    return out;
#endif
}

// kLanes integers of one byte. GCC 12 converts vectors of bytes one by one.
template <bool IS_SIGNED>
inline Vec load_integers(const uint8_t* p) {
#if defined(__AVX512F__)
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return reinterpret_cast<Vec>(_mm512_cvtepi32_ps(IS_SIGNED ? _mm512_cvtepi8_epi32(bytes) : _mm512_cvtepu8_epi32(bytes)));
#elif defined(__AVX2__)
    const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
    return reinterpret_cast<Vec>(_mm256_cvtepi32_ps(IS_SIGNED ? _mm256_cvtepi8_epi32(bytes) : _mm256_cvtepu8_epi32(bytes)));
#else
    Vec out;
    for (int i = 0; i < kLanes; ++i) out[i] = IS_SIGNED ? static_cast<int8_t>(p[i]) : p[i];
    return out;
#endif
}

// A quantized format. weight = scale * (quant - zero) + minimum, with a scale for each part of a group.
template <int64_t KIND>
struct Format {
    static constexpr bool is_k = KIND == kQ4_K || KIND == kQ5_K || KIND == kQ6_K;
    static constexpr bool has_min = KIND == kQ4_1 || KIND == kQ5_1 || KIND == kQ4_K || KIND == kQ5_K;
    static constexpr int high_bits = KIND == kQ6_K ? 2 : KIND == kQ5_0 || KIND == kQ5_1 || KIND == kQ5_K ? 1 : 0;
    static constexpr int parts = KIND == kQ6_K ? 2 : 1;
    static constexpr int32_t zero = KIND == kQ8_0 ? 128 : KIND == kQ4_0 ? 8 : KIND == kQ5_0 ? 16 : KIND == kQ6_K ? 32 : 0;
    static constexpr int64_t super = is_k ? (has_min ? 64 : 32) : 0;  // bytes before each 8 records
    static constexpr int64_t header = is_k || !has_min ? 32 : 64;
    static constexpr int64_t quants = KIND == kQ8_0 ? kElements : kElements / 2 + kElements / 8 * high_bits;
    static constexpr int64_t record = header + quants;

    static const uint8_t* record_of(const uint8_t* block, int64_t group) {
        return block + (is_k ? (group / 8 + 1) * super : 0) + group * record;
    }

    static const uint8_t* quants_of(const uint8_t* block, int64_t group) { return record_of(block, group) + header; }

    // The scales of kLanes outputs. v: the number of the vector.
    static Vec scale(const uint8_t* block, int64_t group, int part, int v) {
        const uint8_t* p = record_of(block, group);
        if constexpr (!is_k) return load_halves(p + v * 2 * kLanes);
        return load_halves(above(block, group) + v * 2 * kLanes) * load_integers<!has_min>(p + 16 * part + v * kLanes);
    }

    // The minimums of kLanes outputs.
    static Vec minimum(const uint8_t* block, int64_t group, int v) {
        const uint8_t* p = record_of(block, group);
        if constexpr (!is_k) return load_halves(p + 32 + v * 2 * kLanes);
        return -(load_halves(above(block, group) + 32 + v * 2 * kLanes) * load_integers<false>(p + 16 + v * kLanes));
    }

    // Row ``quad`` of the quants: 4 inputs of kLanes outputs.
    static Words row(const uint8_t* quants, int quad, int v) {
        const int64_t at = v * 4 * kLanes;
        if constexpr (KIND == kQ8_0) return load_words(quants + quad * 64 + at);
        const Words packed = load_words(quants + quad % 4 * 64 + at);
        Words low = (quad < 4 ? packed : packed >> 4) & 0x0f0f;
        if constexpr (high_bits == 1) {
            const Words high = load_words(quants + kElements / 2 + at);
            low |= (quad < 4 ? high << (4 - quad) : high >> (quad - 4)) & 0x1010;
        }
        if constexpr (high_bits == 2) {
            const Words high = load_words(quants + kElements / 2 + quad / 4 * 64 + at);
            low |= (quad % 4 < 3 ? high << (4 - 2 * (quad % 4)) : high >> 2) & 0x3030;
        }
        return low;
    }

private:
    static const uint8_t* above(const uint8_t* block, int64_t group) { return block + group / 8 * (super + 8 * record); }
};

// The weights of one output, for inputs 32 * group and following.
template <int64_t KIND>
inline void widen_group(const uint8_t* block, int64_t group, int64_t output, float* to) {
    using F = Format<KIND>;
    const int v = static_cast<int>(output / kLanes), lane = static_cast<int>(output % kLanes);
    const uint8_t* quants = F::quants_of(block, group);
    for (int quad = 0; quad < kQuads; ++quad) {
        const float scale = F::scale(block, group, quad * F::parts / kQuads, v)[lane];
        uint8_t bytes[4 * kLanes];
        const Words row = F::row(quants, quad, v);
        std::memcpy(bytes, &row, sizeof bytes);
        for (int i = 0; i < 4; ++i) {
            to[quad * 4 + i] = scale * static_cast<float>(bytes[lane * 4 + i] - F::zero);
            if constexpr (F::has_min) to[quad * 4 + i] += F::minimum(block, group, v)[lane];
        }
    }
}

template <>
inline void widen_group<kBfloat16>(const uint8_t* block, int64_t group, int64_t output, float* to) {
    const uint16_t* from = reinterpret_cast<const uint16_t*>(block) + group * kElements;
    for (int64_t k = 0; k < kGroup; ++k) to[k] = widen(from[k / 2 * 32 + output * 2 + k % 2]);
}

// At namespace scope: a static variable of an inline function would be shared between libraries for different CPUs.
constexpr void (*kWidenGroup[])(const uint8_t*, int64_t, int64_t, float*) = {
    widen_group<kBfloat16>, widen_group<kQ8_0>, widen_group<kQ4_0>, widen_group<kQ4_1>, widen_group<kQ5_0>,
    widen_group<kQ5_1>,     widen_group<kQ4_K>, widen_group<kQ5_K>, widen_group<kQ6_K>,
};
