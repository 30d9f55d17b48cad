// Decode attention over a page table on the CPU: one query token per item, K and V read in place.
// Every item reads its own slots only, so that nan in another page cannot spread.

#include <vector>

#include "simd.h"

namespace {

struct Shape {
    int64_t num_tokens;   // tokens whose K/V is stored
    int64_t num_decodes;  // number of decode tokens, which come first; only they attend
    int64_t num_heads, num_kv_heads, head_dim, page_size, table_width;
    int64_t q_stride, k_stride, v_stride;  // elements between tokens; heads lie head_dim apart
    int64_t window;                        // 0 for no window
    float scale, softcap;                  // softcap: 0 for none
};

// DIM: the size, a constant so that the compiler unrolls the loop; 0 if only the argument ``size`` has it.
template <int DIM>
inline float dot(const float* a, const float* b, int64_t size) {
    const int64_t dim = DIM ? DIM : size;
    Vec products{};
    int64_t i = 0;
    for (; i + kLanes <= dim; i += kLanes) products = multiply_add(load(a + i), load(b + i), products);
    float total = sum(products);
    for (; i < dim; ++i) total = multiply_add(a[i], b[i], total);
    return total;
}

// Replaces scores by exp(score - most), and returns their sum.
float exponentials(float* scores, int64_t count, float most) {
    Vec total{};
    int64_t i = 0;
    for (; i + kLanes <= count; i += kLanes) {
        const Vec weights = exp(load(scores + i) - most);
        store(scores + i, weights);
        total += weights;
    }
    float rest = 0;
    for (; i < count; ++i) rest += scores[i] = std::exp(scores[i] - most);
    return sum(total) + rest;
}

// Turns scores into unnormalized softmax weights in place; returns their sum, the sink included.
float soften(float* scores, int64_t count, float softcap, const float* sink) {
    if (softcap > 0)
        for (int64_t i = 0; i < count; ++i) scores[i] = softcap * std::tanh(scores[i] / softcap);
    float most = sink ? *sink : scores[0];
#pragma omp simd reduction(max : most)
    for (int64_t i = 0; i < count; ++i) most = scores[i] > most ? scores[i] : most;
    const float sum = exponentials(scores, count, most);
    return sink ? sum + std::exp(*sink - most) : sum;
}

struct Scratch {
    std::vector<int64_t> slots;
    std::vector<float> scores, query, row, sums, totals;
};

// Attends with all query heads of one item that share a KV head.
template <int DIM, typename T>
void attend(const Shape& s, int64_t kv_head, const T* q, const T* keys, const T* values, const int32_t* pages,
            int64_t position, const float* sinks, T* out, Scratch& scratch) {
    const int64_t group = s.num_heads / s.num_kv_heads, dim = DIM ? DIM : s.head_dim;
    const int64_t first = s.window && position >= s.window ? position - s.window + 1 : 0;
    const int64_t count = position - first + 1, stride = s.num_kv_heads * dim;
    scratch.scores.resize(group * count);
    scratch.query.resize(group * dim);
    scratch.slots.resize(count);
    scratch.row.resize(dim);
    scratch.sums.assign(group * dim, 0.0f);
    float *scores = scratch.scores.data(), *query = scratch.query.data(), *row = scratch.row.data();
    float* sums = scratch.sums.data();
    for (int64_t i = 0; i < group * dim; ++i) query[i] = widen(q[i]) * s.scale;
    int64_t* slots = scratch.slots.data();
    int64_t page = first / s.page_size, within = first % s.page_size;
    for (int64_t p = 0; p < count; ++p) {
        slots[p] = pages[page] * s.page_size + within;
        if (++within == s.page_size) within = 0, ++page;
    }
    for (int64_t p = 0; p < count; ++p) {
        const T* key = keys + slots[p] * stride + kv_head * dim;
        for (int64_t i = 0; i < dim; ++i) row[i] = widen(key[i]);
        for (int64_t g = 0; g < group; ++g) scores[g * count + p] = dot<DIM>(query + g * dim, row, dim);
    }
    scratch.totals.resize(group);
    float* totals = scratch.totals.data();
    for (int64_t g = 0; g < group; ++g)
        totals[g] = soften(scores + g * count, count, s.softcap, sinks ? sinks + kv_head * group + g : nullptr);
    for (int64_t p = 0; p < count; ++p) {
        const T* value = values + slots[p] * stride + kv_head * dim;
        for (int64_t i = 0; i < dim; ++i) row[i] = widen(value[i]);
        for (int64_t g = 0; g < group; ++g) {
            const float weight = scores[g * count + p];
            float* sum = sums + g * dim;
#pragma omp simd
            for (int64_t i = 0; i < dim; ++i) sum[i] = multiply_add(weight, row[i], sum[i]);
        }
    }
    for (int64_t g = 0; g < group; ++g)
        for (int64_t i = 0; i < dim; ++i) store(out + g * dim + i, sums[g * dim + i] / totals[g]);
}

template <int DIM, typename T>
void step_of(const Shape& s, const T* q, const T* k, const T* v, T* keys, T* values, const int64_t* slots,
          const int32_t* table, const int64_t* rows, const int64_t* positions, const float* sinks, T* out) {
    const int64_t width = s.num_kv_heads * s.head_dim, per_head = s.num_heads / s.num_kv_heads * s.head_dim;
    for (int64_t t = 0; t < s.num_tokens; ++t) {
        std::memcpy(keys + slots[t] * width, k + t * s.k_stride, width * sizeof(T));
        std::memcpy(values + slots[t] * width, v + t * s.v_stride, width * sizeof(T));
    }
    const int64_t jobs = s.num_decodes * s.num_kv_heads;
#pragma omp parallel
    {
        Scratch scratch;
#pragma omp for schedule(dynamic)
        for (int64_t job = 0; job < jobs; ++job) {
            const int64_t item = job / s.num_kv_heads, head = job % s.num_kv_heads;
            attend<DIM>(s, head, q + item * s.q_stride + head * per_head, keys, values, table + rows[item] * s.table_width,
                   positions[item], sinks, out + item * s.num_heads * s.head_dim + head * per_head, scratch);
        }
    }
}

template <typename T, typename... Rest>
void step(const Shape& s, const T* q, Rest... rest) {
    if (s.head_dim == 64) return step_of<64>(s, q, rest...);
    if (s.head_dim == 128) return step_of<128>(s, q, rest...);
    step_of<0>(s, q, rest...);
}

}  // namespace

extern "C" {

void step_float32(const Shape* s, const float* q, const float* k, const float* v, float* keys, float* values,
                  const int64_t* slots, const int32_t* table, const int64_t* rows, const int64_t* positions,
                  const float* sinks, float* out) {
    step(*s, q, k, v, keys, values, slots, table, rows, positions, sinks, out);
}

void step_bfloat16(const Shape* s, const uint16_t* q, const uint16_t* k, const uint16_t* v, uint16_t* keys,
                   uint16_t* values, const int64_t* slots, const int32_t* table, const int64_t* rows,
                   const int64_t* positions, const float* sinks, uint16_t* out) {
    step(*s, q, k, v, keys, values, slots, table, rows, positions, sinks, out);
}
}
