// Quantized weights in memory, and their dequantization into the format that the linear layers multiply.
//
// A block holds 16 outputs, as records of 32 inputs (kinds with superblocks: a header of 256 inputs before each 8). A
// record is a header of scales, [16] each, and the quants. Quants lie in the order of the dequantized elements, packed
// so that bits b * t … of a 32-bit lane belong to the t-th vector: a shift and a mask take out a vector. Weights are
// computed in float32 as the format defines; if activations are bfloat16, the weights are rounded to bfloat16.

#pragma once

#include "simd.h"

// The element type that a linear layer reads: bfloat16 if the CPU multiplies bfloat16, else float32.
#if defined(__AMX_BF16__) || defined(__AVX512BF16__)
using Activation = uint16_t;
#else
using Activation = float;
#endif

// Mirrors ``Kind`` of packed_weights.py.
enum Kind : int64_t { kBfloat16, kQ8_0, kQ4_0, kQ4_1, kQ5_0, kQ5_1, kQ4_K, kQ5_K, kQ6_K };

// The packed weights of 16 outputs.
struct Block {
    const uint8_t* data;
    int64_t kind;
};

constexpr int64_t kGroup = 32;                // inputs of a record
constexpr int64_t kElements = 16 * kGroup;    // weights of a record
constexpr bool kPairs = sizeof(Activation) == 2;
constexpr int kParts = kPairs ? 2 : 16 / kLanes;  // number of vectors after which the outputs repeat

// kLanes signed bytes. GCC 12 converts vectors of bytes one by one.
inline Vec load_bytes(const uint8_t* p) {
#if defined(__AVX512F__)
    const __m512i wide = _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    return reinterpret_cast<Vec>(_mm512_cvtepi32_ps(wide));
#elif defined(__AVX2__)
    const __m256i wide = _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
    return reinterpret_cast<Vec>(_mm256_cvtepi32_ps(wide));
#else
    Vec out;
    for (int i = 0; i < kLanes; ++i) out[i] = static_cast<int8_t>(p[i]);
    return out;
#endif
}

inline Ints load_ints(const uint8_t* p) { return *reinterpret_cast<const Ints*>(p); }

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

// The order of 16 outputs in the vectors of dequantized elements: one after the other, or each twice in pairs.
inline void spread(const float* values, Vec* out) {
    for (int part = 0; part < kParts; ++part)
        for (int i = 0; i < kLanes; ++i) out[part][i] = values[kPairs ? part * 8 + i / 2 : part * kLanes + i];
}

#if defined(__AVX512F__)
inline void spread(__m512 values, Vec* out) {
    if constexpr (kPairs) {
        const __m512i low = _mm512_set_epi32(7, 7, 6, 6, 5, 5, 4, 4, 3, 3, 2, 2, 1, 1, 0, 0);
        out[0] = reinterpret_cast<Vec>(_mm512_permutexvar_ps(low, values));
        out[kParts - 1] = reinterpret_cast<Vec>(_mm512_permutexvar_ps(_mm512_add_epi32(low, _mm512_set1_epi32(8)), values));
    } else {
        out[0] = reinterpret_cast<Vec>(values);
    }
}
#endif

inline void load_halves(const uint8_t* p, Vec* out) {
#if defined(__AVX512F__)
    spread(_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))), out);
#elif defined(__F16C__) && defined(__AVX2__)
    for (int part = 0; part < kParts; ++part)
        out[part] = reinterpret_cast<Vec>(_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p) + part)));
#else
    float values[16];
    for (int i = 0; i < 16; ++i) {
        uint16_t half;
        std::memcpy(&half, p + 2 * i, 2);
        values[i] = widen_half(half);
    }
    spread(values, out);
#endif
}

// T: uint8_t or int8_t.
template <typename T>
inline void load_integers(const uint8_t* p, Vec* out) {
    float values[16];
    for (int i = 0; i < 16; ++i) values[i] = static_cast<T>(p[i]);
#if defined(__AVX512F__)
    spread(_mm512_loadu_ps(values), out);
#else
    spread(values, out);
#endif
}

// weight = quant * scale + offset, for the first and the last 16 inputs of a group.
struct Factors {
    Vec scale[2][kParts], offset[2][kParts];

    void repeat() {
        for (int part = 0; part < kParts; ++part) scale[1][part] = scale[0][part], offset[1][part] = offset[0][part];
    }
};

// The bits of a quant, and its header. super: number of bytes before each 8 records.
template <int64_t KIND>
struct Format {
    static constexpr bool is_k = KIND == kQ4_K || KIND == kQ5_K || KIND == kQ6_K;
    static constexpr bool has_min = KIND == kQ4_1 || KIND == kQ5_1 || KIND == kQ4_K || KIND == kQ5_K;
    static constexpr int high_bits = KIND == kQ6_K ? 2 : KIND == kQ5_0 || KIND == kQ5_1 || KIND == kQ5_K ? 1 : 0;
    static constexpr int64_t super = is_k ? (has_min ? 64 : 32) : 0;
    static constexpr int64_t header = is_k || !has_min ? 32 : 64;
    static constexpr int64_t quants = KIND == kQ8_0 ? kElements : kElements / 2 + kElements / 8 * high_bits;
    static constexpr int64_t record = header + quants;

    static int64_t record_at(int64_t group) { return is_k ? (group / 8 + 1) * super + group * record : group * record; }

    // All products, and all sums except that of a minimum, are exact in float32: a fused multiply-add changes nothing.
    static void load_factors(const uint8_t* block, int64_t group, Factors& f) {
        const uint8_t* p = block + record_at(group);
        if constexpr (is_k) {
            const uint8_t* above = block + group / 8 * (super + 8 * record);
            Vec unit[kParts], unit_min[kParts], count[kParts];
            load_halves(above, unit);
            if constexpr (has_min) {
                load_halves(above + 32, unit_min);
                load_integers<uint8_t>(p + 16, count);
                for (int part = 0; part < kParts; ++part) f.offset[0][part] = -(unit_min[part] * count[part]);
                load_integers<uint8_t>(p, count);
                for (int part = 0; part < kParts; ++part) f.scale[0][part] = unit[part] * count[part];
                f.repeat();
            } else {
                for (int half = 0; half < 2; ++half) {
                    load_integers<int8_t>(p + 16 * half, count);
                    for (int part = 0; part < kParts; ++part) {
                        f.scale[half][part] = unit[part] * count[part];
                        f.offset[half][part] = -32.0f * f.scale[half][part];
                    }
                }
            }
        } else {
            load_halves(p, f.scale[0]);
            if constexpr (has_min) load_halves(p + 32, f.offset[0]);
            for (int part = 0; part < kParts; ++part)
                if constexpr (!has_min) f.offset[0][part] = f.scale[0][part] * (KIND == kQ4_0 ? -8.0f : -16.0f);
            f.repeat();
        }
    }
};

// Takes a group's vectors in order. Element e is input e / 32 * 2 + e % 2 of output e % 32 / 2 in pairs, else input
// e / 16 of output e % 16.
class Sink {
public:
    explicit Sink(Activation* to) : to_(to) {}

    void take(int j, Vec weights) {
#if defined(__AVX512BF16__)
        if (j % 2 == 0) {
            even_ = weights;
            return;
        }
        const auto pairs = _mm512_cvtne2ps_pbh(reinterpret_cast<__m512>(weights), reinterpret_cast<__m512>(even_));
        _mm512_storeu_si512(to_ + (j - 1) * kLanes, reinterpret_cast<__m512i>(pairs));
#else
        store(to_ + j * kLanes, weights);
#endif
    }

private:
    Activation* to_;
    [[maybe_unused]] Vec even_{};
};

// The bits 4 * t … 4 * t + 3 of each lane, as numbers.
inline Vec nibbles(Ints lanes, int t) {
#if defined(__AVX512F__)
    const __m512 numbers = _mm512_set_ps(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);  // by the low 4 bits
    return reinterpret_cast<Vec>(_mm512_permutexvar_ps(reinterpret_cast<__m512i>(lanes >> (4 * t)), numbers));
#else
    return __builtin_convertvector((lanes >> (4 * t)) & 15, Vec);
#endif
}

template <int64_t KIND>
inline void widen_record(const uint8_t* block, int64_t group, Activation* to) {
    using F = Format<KIND>;
    Factors f;
    F::load_factors(block, group, f);
    const uint8_t* quants = block + F::record_at(group) + F::header;
    Sink sink(to);
    constexpr int vectors = kElements / kLanes;
    if constexpr (KIND == kQ8_0) {
#pragma GCC unroll 8
        for (int j = 0; j < vectors; ++j) sink.take(j, load_bytes(quants + j * kLanes) * f.scale[0][j % kParts]);
        return;
    }
    for (int w = 0; w < vectors / 8; ++w) {
        const Ints low = load_ints(quants + w * 4 * kLanes);
        [[maybe_unused]] Ints high{};
        if constexpr (F::high_bits == 1) high = load_ints(quants + kElements / 2 + w / 4 * 4 * kLanes) >> (w % 4 * 8);
        if constexpr (F::high_bits == 2) high = load_ints(quants + kElements / 2 + w / 2 * 4 * kLanes) >> (w % 2 * 16);
        const int half = w >= vectors / 16;
#pragma GCC unroll 8
        for (int t = 0; t < 8; ++t) {
            Vec value = nibbles(low, t);
            if constexpr (F::high_bits == 1) value += __builtin_convertvector((high << 4 >> t) & 16, Vec);
            if constexpr (F::high_bits == 2) value += __builtin_convertvector((high << 4 >> (2 * t)) & 48, Vec);
            sink.take(w * 8 + t, value * f.scale[half][t % kParts] + f.offset[half][t % kParts]);
        }
    }
}

template <>
inline void widen_record<kBfloat16>(const uint8_t* block, int64_t group, Activation* to) {
    const uint16_t* from = reinterpret_cast<const uint16_t*>(block) + group * kElements;
    if constexpr (kPairs) {
        std::memcpy(to, from, kElements * 2);
    } else {
        for (int64_t k = 0; k < kGroup; ++k)
            for (int64_t n = 0; n < 16; ++n) store(to + k * 16 + n, widen(from[k / 2 * 32 + n * 2 + k % 2]));
    }
}

template <int64_t KIND>
inline void widen_records(const uint8_t* block, int64_t first, int64_t count, Activation* to) {
    for (int64_t i = 0; i < count; ++i) widen_record<KIND>(block, first + i, to + i * kElements);
}

// At namespace scope: a static variable of an inline function would be shared between libraries for different CPUs.
constexpr void (*kWiden[])(const uint8_t*, int64_t, int64_t, Activation*) = {
    widen_records<kBfloat16>, widen_records<kQ8_0>, widen_records<kQ4_0>, widen_records<kQ4_1>, widen_records<kQ5_0>,
    widen_records<kQ5_1>,     widen_records<kQ4_K>, widen_records<kQ5_K>, widen_records<kQ6_K>,
};

// to = the weights of ``count`` groups of a block: [inputs / 2][16][2] in bfloat16, or [inputs][16] in float32.
inline void widen_block(const Block& block, int64_t first, int64_t count, Activation* to) {
    kWiden[block.kind](block.data, first, count, to);
}

// The index of input k of output n among the dequantized weights of a block.
inline int64_t element(int64_t n, int64_t k) { return kPairs ? k / 2 * 32 + n * 2 + k % 2 : k * 16 + n; }
