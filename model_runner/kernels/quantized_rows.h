// Rows of K or V in int8: the quants of one token and KV head, and their float32 scale.

#pragma once

#include "quantized_weights.h"

constexpr int64_t row_bytes(int64_t dim) { return dim + 4; }

// The greatest number of a row as an integer: nan is greater than infinity, and infinity greater than all numbers.
inline float greatest_size(const float* x, int64_t dim) {
    Ints most{};
    for (int64_t d = 0; d < dim; d += kLanes) {
        const Ints size = reinterpret_cast<Ints>(load(x + d)) & 0x7fffffff;
        most = size > most ? size : most;
    }
    const int32_t bits = greatest(most);
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
}

// Quantizes a row. If one of its numbers is nan or infinite, so are all numbers that are taken from it.
inline void put_row(const float* x, int64_t dim, int8_t* to) {
    const float size = greatest_size(x, dim), scale = size / 127.0f, inverse = size > 1e-30f ? 127.0f / size : 0.0f;
    int32_t numbers[kLanes];
    for (int64_t d = 0; d < dim; d += kLanes) {
        // 1.5 * 2^23: the sum is rounded to an integer, in the low bits
        store(numbers, reinterpret_cast<Ints>(multiply_add(load(x + d), inverse, splat(12582912.0f))));
        for (int i = 0; i < kLanes; ++i) to[d + i] = static_cast<int8_t>(numbers[i] & 255);
    }
    std::memcpy(to + dim, &scale, 4);
}

template <typename T>
inline void take_row(const int8_t* from, int64_t dim, T* to) {
    float scale;
    std::memcpy(&scale, from + dim, 4);
    for (int64_t d = 0; d < dim; d += kLanes) {
        const Vec numbers = load_integers<true>(reinterpret_cast<const uint8_t*>(from + d)) * scale;
#if defined(__AVX512BF16__)
        if constexpr (sizeof(T) == 2) {
            const auto rounded = _mm512_cvtneps_pbh(reinterpret_cast<__m512>(numbers));
            _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + d), reinterpret_cast<__m256i>(rounded));
            continue;
        }
#endif
        store(to + d, numbers);
    }
}
