// Draws tokens from logits with temperature, top_k, top_p and min_p, without sorting the vocabulary.
//
// A border probability is found by buckets: the upper half of a float's bits orders positive floats. Only the bucket
// that holds the border is sorted.

#include <omp.h>

#include <algorithm>
#include <vector>

#include "simd.h"

namespace {

struct Row {
    float temperature;
    int64_t top_k;  // turned off by the vocabulary's size
    float top_p;    // turned off by 1
    float min_p;    // turned off by 0
    double uniform;
};

struct Scratch {
    std::vector<float> weights;  // exp of (logit - greatest) / temperature, in (0, 1]
    std::vector<int32_t> counts;
    std::vector<double> sums;
    std::vector<float> border;
};

constexpr int64_t kBuckets = 0x3f80 + 1;  // number of buckets for floats up to 1.0

inline int64_t bucket_of(float weight) {
    uint32_t bits;
    std::memcpy(&bits, &weight, 4);
    return std::min<int64_t>(bits >> 16, kBuckets - 1);
}

inline Vec without_nan(Vec x) { return x == x ? x : Vec{}; }

double sum_of(const float* weights, int64_t count) {
    double total = 0;
    int64_t i = 0;
    for (; i + kLanes <= count; i += kLanes) total += sum(load(weights + i));
    for (; i < count; ++i) total += weights[i];
    return total;
}

void fill_weights(const float* logits, int64_t count, float temperature, float* weights) {
    float most = -INFINITY;
    for (int64_t i = 0; i < count; ++i) most = logits[i] > most ? logits[i] : most;
    const float scale = 1.0f / temperature;
    int64_t i = 0;
    for (; i + kLanes <= count; i += kLanes) store(weights + i, without_nan(exp((load(logits + i) - most) * scale)));
    for (; i < count; ++i) {
        const float weight = std::exp((logits[i] - most) * scale);
        weights[i] = std::isnan(weight) ? 0 : weight;
    }
}

// The weights to keep: those above ``border``, and the first ``ties`` that equal it.
struct Kept {
    float border;
    int64_t ties;
};

// The most likely tokens: top_k of them, and of those the fewest whose sum reaches the share top_p of their sum.
Kept top_of(const Row& row, int64_t count, Scratch& s) {
    s.counts.assign(kBuckets, 0);
    s.sums.assign(kBuckets, 0.0);
    for (int64_t i = 0; i < count; ++i) {
        const int64_t bucket = bucket_of(s.weights[i]);
        ++s.counts[bucket];
        s.sums[bucket] += s.weights[i];
    }
    const auto sorted = [&](int64_t bucket) {
        s.border.clear();
        for (int64_t i = 0; i < count; ++i)
            if (bucket_of(s.weights[i]) == bucket) s.border.push_back(s.weights[i]);
        std::sort(s.border.begin(), s.border.end(), std::greater<float>());
    };
    // The sum of the top_k weights.
    double total = 0;
    int64_t num = 0;
    for (int64_t bucket = kBuckets - 1; bucket >= 0 && num < row.top_k; --bucket) {
        if (num + s.counts[bucket] <= row.top_k) {
            num += s.counts[bucket];
            total += s.sums[bucket];
            continue;
        }
        sorted(bucket);
        for (int64_t i = 0; num < row.top_k; ++i, ++num) total += s.border[i];
    }
    // Descend through the buckets until the wanted share of that sum is reached.
    const double wanted = row.top_p < 1 ? row.top_p * total : INFINITY;
    double reached = 0;
    num = 0;
    for (int64_t bucket = kBuckets - 1; bucket >= 0; --bucket) {
        if (s.counts[bucket] == 0) continue;
        if (num + s.counts[bucket] < row.top_k && reached + s.sums[bucket] < wanted) {
            num += s.counts[bucket];
            reached += s.sums[bucket];
            continue;
        }
        sorted(bucket);
        int64_t last = 0;
        for (; last < static_cast<int64_t>(s.border.size()); ++last) {
            reached += s.border[last];
            if (++num == row.top_k || reached >= wanted) break;
        }
        last = std::min<int64_t>(last, s.border.size() - 1);
        const float border = s.border[last];
        const auto first = std::lower_bound(s.border.begin(), s.border.end(), border, std::greater<float>());
        return {border, last + 1 - (first - s.border.begin())};
    }
    return {-1, 0};
}

int64_t draw(const float* logits, int64_t count, const Row& row, Scratch& s) {
    s.weights.resize(count);
    fill_weights(logits, count, row.temperature, s.weights.data());
    if (row.top_k < count || row.top_p < 1) {
        const Kept kept = top_of(row, count, s);
        int64_t ties = kept.ties;
        for (int64_t i = 0; i < count; ++i)
            if (!(s.weights[i] > kept.border || (s.weights[i] == kept.border && ties-- > 0))) s.weights[i] = 0;
    }
    if (row.min_p > 0)  // the greatest weight is 1
        for (int64_t i = 0; i < count; ++i)
            if (!(s.weights[i] >= row.min_p)) s.weights[i] = 0;
    // Inverse CDF over the ids, in blocks: the first id whose sum is greater than the target.
    constexpr int64_t kBlock = 1024;
    double total = 0, before = 0;
    for (int64_t i = 0; i < count; i += kBlock) total += sum_of(&s.weights[i], std::min(kBlock, count - i));
    const double target = row.uniform * total;
    int64_t last = count - 1;
    for (int64_t first = 0; first < count; first += kBlock) {
        const int64_t size = std::min(kBlock, count - first);
        const double block = sum_of(&s.weights[first], size);
        if (before + block > target) {
            double reached = before;
            for (int64_t i = first; i < first + size; ++i) {
                reached += s.weights[i];
                if (s.weights[i] > 0) last = i;
                if (reached > target) return i;
            }
            return last;  // the vectorized sum of the block was rounded to a greater number
        }
        before += block;
    }
    while (last > 0 && !(s.weights[last] > 0)) --last;
    return last;
}

}  // namespace

extern "C" {

// logits: float32 [rows][count], consecutive. tokens: int64 [rows]. A row with nan yields an arbitrary token.
void draw_tokens(const float* logits, int64_t rows, int64_t count, const float* temperatures, const int64_t* top_ks,
                 const float* top_ps, const float* min_ps, const double* uniforms, int64_t num_threads, int64_t* tokens) {
#pragma omp parallel num_threads(static_cast<int>(std::min(num_threads, rows)))
    {
        Scratch scratch;
#pragma omp for schedule(dynamic)
        for (int64_t row = 0; row < rows; ++row)
            tokens[row] = draw(logits + row * count, count,
                               {temperatures[row], top_ks[row], top_ps[row], min_ps[row], uniforms[row]}, scratch);
    }
}
}
