// Vectors of float32 in the CPU's own width, and bfloat16. GCC's vector extensions lower to AVX512, AVX2 or NEON.

#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <utility>

#if defined(__AVX2__) || defined(__AVX512F__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
constexpr int kLanes = 16;
#elif defined(__AVX2__)
constexpr int kLanes = 8;
#else
constexpr int kLanes = 4;
#endif

using Vec = float __attribute__((vector_size(4 * kLanes), aligned(4), may_alias));
using Ints = int32_t __attribute__((vector_size(4 * kLanes), aligned(4), may_alias));
using Halves = uint16_t __attribute__((vector_size(2 * kLanes), aligned(2), may_alias));

inline Vec splat(float x) { return x - Vec{}; }  // a sum would turn -0 into 0, which takes an instruction
inline Vec load(const float* p) { return *reinterpret_cast<const Vec*>(p); }
inline void store(float* p, Vec x) { *reinterpret_cast<Vec*>(p) = x; }

// a * b + c, rounded once if the CPU has such an instruction. The compiler itself would join products and sums at some
// levels of optimization only.
inline float multiply_add(float a, float b, float c) {
#if defined(__FP_FAST_FMAF)
    return __builtin_fmaf(a, b, c);
#else
    return a * b + c;
#endif
}

inline Vec multiply_add(Vec a, Vec b, Vec c) {
#if defined(__AVX512F__)
    return reinterpret_cast<Vec>(
        _mm512_fmadd_ps(reinterpret_cast<__m512>(a), reinterpret_cast<__m512>(b), reinterpret_cast<__m512>(c)));
#elif defined(__AVX2__) && defined(__FMA__)
    return reinterpret_cast<Vec>(
        _mm256_fmadd_ps(reinterpret_cast<__m256>(a), reinterpret_cast<__m256>(b), reinterpret_cast<__m256>(c)));
#else
    Vec out;
    for (int i = 0; i < kLanes; ++i) out[i] = multiply_add(a[i], b[i], c[i]);
    return out;
#endif
}

inline Vec multiply_add(Vec a, float b, Vec c) { return multiply_add(a, splat(b), c); }
inline Vec multiply_add(Vec a, float b, float c) { return multiply_add(a, splat(b), splat(c)); }
inline Vec multiply_add(Vec a, Vec b, float c) { return multiply_add(a, b, splat(c)); }

inline float widen(uint16_t x) {
    const uint32_t bits = static_cast<uint32_t>(x) << 16;
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
}

inline float widen(float x) { return x; }

inline Vec load(const uint16_t* p) {
    return reinterpret_cast<Vec>(__builtin_convertvector(*reinterpret_cast<const Halves*>(p), Ints) << 16);
}

// Round to nearest even; nan stays nan.
inline void store(uint16_t* p, float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    *p = std::isnan(value) ? 0x7fc0 : static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

inline float rounded(float value) {
    uint16_t bits;
    store(&bits, value);
    return widen(bits);
}

inline void store(uint16_t* p, Vec x) {
    const Ints bits = reinterpret_cast<Ints>(x), is_nan = x != x;
    const Ints rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    *reinterpret_cast<Halves*>(p) = __builtin_convertvector((is_nan & 0x7fc0) | (~is_nan & rounded), Halves);
}

inline void store(float* p, float value) { *p = value; }

// exp(x) to about 2 units in the last place for x <= 88; 0 below -87.
inline Vec exp(Vec x) {
    const Ints is_tiny = x < splat(-87.0f);
    x = is_tiny ? splat(-87.0f) : x;
    const Vec n = multiply_add(x, 1.44269504f, 12582912.0f) - 12582912.0f;  // 1.5 * 2^23: rounded to an integer
    const Vec r = multiply_add(n, 2.12194440e-4f, multiply_add(n, -0.693359375f, x));
    Vec p = splat(1.9875691500e-4f);
    p = multiply_add(p, r, 1.3981999507e-3f);
    p = multiply_add(p, r, 8.3334519073e-3f);
    p = multiply_add(p, r, 4.1665795894e-2f);
    p = multiply_add(p, r, 1.6666665459e-1f);
    p = multiply_add(p, r, 5.0000001201e-1f);
    p = multiply_add(p * r, r, r) + 1.0f;
    const Ints power = (__builtin_convertvector(n, Ints) + 127) << 23;
    return is_tiny ? Vec{} : p * reinterpret_cast<Vec>(power);
}

// The sum of all lanes. Each step adds one half of the lanes to the other.
inline float sum(Vec x) {
    float lanes[kLanes];
    store(lanes, x);
    for (int width = kLanes / 2; width > 0; width /= 2)
        for (int i = 0; i < width; ++i) lanes[i] += lanes[i + width];
    return lanes[0];
}

inline void store(int32_t* p, Ints x) { *reinterpret_cast<Ints*>(p) = x; }

inline int32_t sum(Ints x) {
#if defined(__AVX512F__)
    return _mm512_reduce_add_epi32(reinterpret_cast<__m512i>(x));
#else
    int32_t total = 0;
    for (int i = 0; i < kLanes; ++i) total += x[i];
    return total;
#endif
}

inline int32_t greatest(Ints x) {
#if defined(__AVX512F__)
    return _mm512_reduce_max_epi32(reinterpret_cast<__m512i>(x));
#else
    int32_t most = x[0];
    for (int i = 1; i < kLanes; ++i) most = x[i] > most ? x[i] : most;
    return most;
#endif
}

inline float greatest(Vec x) {
    float lanes[kLanes];
    store(lanes, x);
    float most = lanes[0];
    for (int i = 1; i < kLanes; ++i) most = lanes[i] > most ? lanes[i] : most;
    return most;
}

// Adds lanes at DISTANCE from each other in a and in b; the sums of a and b alternate in the result.
template <int DISTANCE, int... LANES>
inline Vec fold(Vec a, Vec b, std::integer_sequence<int, LANES...>) {
    const Ints own = {((LANES & DISTANCE) ? kLanes : 0) + LANES...};
    const Ints other = {((LANES & DISTANCE) ? kLanes : 0) + (LANES ^ DISTANCE)...};
    return __builtin_shuffle(a, b, own) + __builtin_shuffle(a, b, other);
}

template <int DISTANCE>
inline void fold_pairs(Vec* x) {
    for (int i = 0; i < kLanes / DISTANCE / 2; ++i)
        x[i] = fold<DISTANCE>(x[2 * i], x[2 * i + 1], std::make_integer_sequence<int, kLanes>{});
}

// Lane i of the result is the sum over the lanes of x[i]. Overwrites the kLanes vectors.
inline Vec sums(Vec* x) {
    fold_pairs<1>(x);
    fold_pairs<2>(x);
    if constexpr (kLanes > 4) fold_pairs<4>(x);
    if constexpr (kLanes > 8) fold_pairs<8>(x);
    return x[0];
}
