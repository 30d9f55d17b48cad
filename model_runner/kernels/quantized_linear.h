// Linear layers with quantized weights: products of bytes, with VNNI or 8-bit multiply-adds.
//
// The inputs of a row are quantized to signed bytes with a scale for each 32 of them. The products of a group are summed
// in integers, which is exact in every order; the sums of the groups are scaled and added in float32, group by group. So
// a row's result depends neither on the other rows nor on the instructions that multiply the bytes.

#pragma once

#include <algorithm>

#include "buffer.h"
#include "quantized_weights.h"

#if defined(__AVX512VNNI__) || (defined(__AVXVNNI__) && !defined(__AVX512F__))
#define EBBTIDE_VNNI
#endif

struct GroupScale {
    float scale, scaled_sum;  // scaled_sum: scale times the sum of the quants
    int32_t sums[2];          // of the first and of the last 16 quants
};

// Rows of ``k`` quantized inputs.
struct QuantRows {
    int8_t* quants;      // [rows][k]
    GroupScale* scales;  // [rows][k / 32]
    int64_t k;
};

// Quantizes 32 inputs. If one of them is nan or infinite, so is the result of the row.
template <typename T>
inline void quantize_group(const T* x, const QuantRows& to, int64_t row, int64_t group) {
    constexpr int vectors = kGroup / kLanes;
    Vec values[vectors];
    Ints most{};  // as integers, nan is greater than infinity, and infinity greater than all numbers
    for (int v = 0; v < vectors; ++v) {
        values[v] = load(x + v * kLanes);
        const Ints size = reinterpret_cast<Ints>(values[v]) & 0x7fffffff;
        most = size > most ? size : most;
    }
    float greatest_size;
    const int32_t bits = greatest(most);
    std::memcpy(&greatest_size, &bits, 4);
    const float inverse = greatest_size > 1e-30f ? 127.0f / greatest_size : 0.0f;
    int32_t numbers[kGroup];
    GroupScale& scale = to.scales[row * (to.k / kGroup) + group];
    for (int half = 0; half < 2; ++half) {
        Ints total{};
        for (int v = half * vectors / 2; v < (half + 1) * vectors / 2; ++v) {
            // 1.5 * 2^23: the sum is rounded to an integer, in the low bits
            const Ints rounded = reinterpret_cast<Ints>(multiply_add(values[v], inverse, 12582912.0f)) << 24 >> 24;
            total += rounded;
            store(numbers + v * kLanes, rounded);
        }
        scale.sums[half] = sum(total);
    }
    scale.scale = greatest_size / 127.0f;
    scale.scaled_sum = scale.scale * static_cast<float>(scale.sums[0] + scale.sums[1]);
    int8_t* out = to.quants + row * to.k + group * kGroup;
    for (int i = 0; i < kGroup; ++i) out[i] = static_cast<int8_t>(numbers[i]);
}

template <typename T>
inline void quantize_row(const T* x, const QuantRows& to, int64_t row) {
    for (int64_t group = 0; group < to.k / kGroup; ++group) quantize_group(x + group * kGroup, to, row, group);
}

// The integer sum over the inputs of a group, or of a part of it, for kLanes outputs.
template <int64_t KIND>
class Products {
public:
    // Without VNNI, the products of Q8_0 are those of signed weights, so that pairs of them fit into 16 bits.
#if defined(EBBTIDE_VNNI) || !defined(__AVX2__)
    static constexpr bool is_signed = false;
#else
    static constexpr bool is_signed = KIND == kQ8_0;
#endif

    // Adds the products of 4 weights of each output with 4 inputs.
    void add(Words weights, const int8_t* x) {
        int32_t quad;
        std::memcpy(&quad, x, 4);
#if defined(EBBTIDE_VNNI) && defined(__AVX512F__)
        const __m512i sum = reinterpret_cast<__m512i>(total_);
        total_ = reinterpret_cast<Ints>(_mm512_dpbusd_epi32(sum, reinterpret_cast<__m512i>(weights), _mm512_set1_epi32(quad)));
#elif defined(EBBTIDE_VNNI)
        const __m256i sum = reinterpret_cast<__m256i>(total_);
        total_ = reinterpret_cast<Ints>(_mm256_dpbusd_avx_epi32(sum, reinterpret_cast<__m256i>(weights), _mm256_set1_epi32(quad)));
#elif defined(__AVX512BW__)
        __m512i w = reinterpret_cast<__m512i>(weights), inputs = _mm512_set1_epi32(quad);
        if constexpr (is_signed) {
            w = _mm512_xor_si512(w, _mm512_set1_epi8(-128));
            inputs = _mm512_mask_sub_epi8(inputs, _mm512_movepi8_mask(w), _mm512_setzero_si512(), inputs);
            w = _mm512_abs_epi8(w);
        }
        add_pairs(reinterpret_cast<Words>(_mm512_maddubs_epi16(w, inputs)));
#elif defined(__AVX2__)
        __m256i w = reinterpret_cast<__m256i>(weights), inputs = _mm256_set1_epi32(quad);
        if constexpr (is_signed) {
            w = _mm256_xor_si256(w, _mm256_set1_epi8(-128));
            inputs = _mm256_sign_epi8(inputs, w);
            w = _mm256_abs_epi8(w);
        }
        add_pairs(reinterpret_cast<Words>(_mm256_maddubs_epi16(w, inputs)));
#else
        const Ints quads = reinterpret_cast<Ints>(weights);
        total_ += (quads & 255) * x[0] + (quads >> 8 & 255) * x[1];
        total_ += (quads >> 16 & 255) * x[2] + (quads >> 24 & 255) * x[3];
#endif
    }

    Ints total() {
        flush();
        return total_;
    }

private:
    // The number of sums of two products that fit into 16 bits.
    static constexpr int kPairs = KIND == kQ8_0 ? 1 : 8 >> Format<KIND>::high_bits;

    void add_pairs(Words pairs) {
        pairs_ += pairs;
        if (++count_ == kPairs) flush();
    }

    void flush() {
#if !defined(EBBTIDE_VNNI) && defined(__AVX512BW__)
        const __m512i sums = _mm512_madd_epi16(reinterpret_cast<__m512i>(pairs_), _mm512_set1_epi16(1));
        if (count_) total_ += reinterpret_cast<Ints>(sums);
#elif !defined(EBBTIDE_VNNI) && defined(__AVX2__) && !defined(__AVX512F__)
        const __m256i sums = _mm256_madd_epi16(reinterpret_cast<__m256i>(pairs_), _mm256_set1_epi16(1));
        if (count_) total_ += reinterpret_cast<Ints>(sums);
#endif
        pairs_ = Words{}, count_ = 0;
    }

    Ints total_{};
    Words pairs_{};
    int count_ = 0;  // known to the compiler once the loops over a group are unrolled
};

// The sum of a row and kLanes outputs, with the integer sum of a group added.
inline Vec add_scaled(Vec sum, Ints total, Vec weight_scale, float scale) {
    return multiply_add(__builtin_convertvector(total, Vec) * weight_scale, scale, sum);
}

inline Vec add_minimum(Vec sum, Vec minimum, float scaled_sum) { return multiply_add(minimum, scaled_sum, sum); }

// The sum of the offsets of a part of a group.
template <int64_t KIND>
inline int32_t offset(const GroupScale& x, int part) {
    if constexpr (Products<KIND>::is_signed) return 0;
    return -Format<KIND>::zero * (Format<KIND>::parts == 2 ? x.sums[part] : x.sums[0] + x.sums[1]);
}

// sums[ROWS][stride]: the products of rows row … row + ROWS with the 16 outputs of a block.
template <int64_t KIND, int ROWS>
inline void multiply_rows(const uint8_t* block, const QuantRows& x, int64_t row, float* sums, int64_t stride) {
    using F = Format<KIND>;
    constexpr int quads = kQuads / F::parts;
    const int64_t groups = x.k / kGroup;
    Vec acc[ROWS][kVecs] = {};
    for (int64_t group = 0; group < groups; ++group) {
        const uint8_t* weights = F::quants_of(block, group);
        const int8_t* inputs = x.quants + row * x.k + group * kGroup;
        const GroupScale* scales = x.scales + row * groups + group;
#pragma GCC unroll 4
        for (int v = 0; v < kVecs; ++v) {
#pragma GCC unroll 2
            for (int part = 0; part < F::parts; ++part) {
                Products<KIND> products[ROWS];
#pragma GCC unroll 8
                for (int quad = part * quads; quad < (part + 1) * quads; ++quad) {
                    const Words words = F::row(weights, quad, v);
#pragma GCC unroll 8
                    for (int r = 0; r < ROWS; ++r) products[r].add(words, inputs + r * x.k + quad * 4);
                }
                const Vec scale = F::scale(block, group, part, v);
#pragma GCC unroll 8
                for (int r = 0; r < ROWS; ++r) {
                    const GroupScale& of = scales[r * groups];
                    acc[r][v] = add_scaled(acc[r][v], products[r].total() + offset<KIND>(of, part), scale, of.scale);
                }
            }
            if constexpr (F::has_min) {
                const Vec minimum = F::minimum(block, group, v);
#pragma GCC unroll 8
                for (int r = 0; r < ROWS; ++r) acc[r][v] = add_minimum(acc[r][v], minimum, scales[r * groups].scaled_sum);
            }
        }
    }
    for (int r = 0; r < ROWS; ++r)
        for (int v = 0; v < kVecs; ++v) store(sums + r * stride + v * kLanes, acc[r][v]);
}

// sums[count][stride] = rows row … row + count of the inputs times the 16 outputs of a block.
template <int64_t KIND>
__attribute__((noinline)) inline void multiply_quants(const uint8_t* block, const QuantRows& x, int64_t row, int64_t count,
                                                      float* sums, int64_t stride) {
    const int64_t end = row + count;
    constexpr int rows = kLanes == 16 ? 8 : 4;
    for (; row + rows <= end; row += rows, sums += rows * stride) multiply_rows<KIND, rows>(block, x, row, sums, stride);
    for (; row < end; ++row, sums += stride) multiply_rows<KIND, 1>(block, x, row, sums, stride);
}

constexpr void (*kMultiplyQuants[])(const uint8_t*, const QuantRows&, int64_t, int64_t, float*, int64_t) = {
    nullptr,
    multiply_quants<kQ8_0>,
    multiply_quants<kQ4_0>,
    multiply_quants<kQ4_1>,
    multiply_quants<kQ5_0>,
    multiply_quants<kQ5_1>,
    multiply_quants<kQ4_K>,
    multiply_quants<kQ5_K>,
    multiply_quants<kQ6_K>,
};
