// Operations on single rows: normalization and rotary position embedding.

#pragma once

#include <cmath>

#include "packed_linear.h"

// Returns 1 / sqrt(mean of squares + eps).
inline float rms_factor(const float* x, int64_t size, float eps) {
    Vec squares{};
    int64_t i = 0;
    for (; i + kLanes <= size; i += kLanes) squares = multiply_add(load(x + i), load(x + i), squares);
    float total = sum(squares);
    for (; i < size; ++i) total = multiply_add(x[i], x[i], total);
    return 1.0f / std::sqrt(total / static_cast<float>(size) + eps);
}

// RMSNorm (Zhang and Sennrich 2019).
inline void normalize(const float* x, const float* weight, int64_t size, float eps, Activation* out) {
    const float factor = rms_factor(x, size, eps);
    int64_t i = 0;
    for (; i + kLanes <= size; i += kLanes) store(out + i, load(x + i) * factor * load(weight + i));
    for (; i < size; ++i) store(out + i, x[i] * factor * weight[i]);
}

// RoPE (Su et al. 2021) of one head, half-split, after RMSNorm if ``norm`` is not null.
inline void rotate(float* head, int64_t dim, const float* norm, float eps, const float* cos, const float* sin, float scale) {
    const int64_t half = dim / 2;
    if (norm) {
        const float factor = rms_factor(head, dim, eps);
        for (int64_t i = 0; i < dim; ++i) head[i] = head[i] * factor * norm[i];
    }
    for (int64_t i = 0; i < half; ++i) {
        const float low = head[i], high = head[i + half];
        head[i] = multiply_add(low, cos[i], high * sin[i]) * scale;
        head[i + half] = multiply_add(high, cos[i + half], low * sin[i + half]) * scale;
    }
}
