// The forward pass of a Llama-family model on the CPU, one call per step: embedding, layers, final norm.
//
// All threads run through the stages together, with a barrier after each stage. Activations between layers are float32;
// the inputs of the linear layers have the type ``Activation``. The result of a row does not depend on the other rows.

#include <omp.h>

#include <algorithm>
#include <memory>

#include "barrier.h"
#include "model_batch.h"
#include "norm_rope.h"
#include "packed_linear.h"
#include "paged_attention.h"
#include "tile_decode.h"

namespace {

// The buffers of one thread.
struct Scratch {
    std::vector<float> query;
    LinearScratch linear;
#if defined(__AMX_BF16__)
    TileScratch tiles;
#else
    AttentionScratch plain;
#endif
};

struct Job {
    int64_t item, token, count;
};

// A model, which only points to its weights, and the buffers of a step. One thread at a time may call it.
class Llama {
public:
    explicit Llama(const ModelWeights& weights) : w_(weights), layers_(weights.layers, weights.layers + weights.num_layers) {
        is_quantized_ = kQuantizesInputs && has_quants(w_.head);
        for (const LayerWeights& layer : layers_)
            for (const Linear* linear : {&layer.qkv, &layer.out, &layer.gate_up, &layer.down})
                is_quantized_ = is_quantized_ || (kQuantizesInputs && has_quants(*linear));
    }

    void forward(const Batch& batch, Activation* states) {
        start(batch);
        std::unique_ptr<Barrier> meeting;
#pragma omp parallel num_threads(static_cast<int>(w_.num_threads))
        {
#pragma omp single
            {  // OpenMP may start fewer threads than requested
                threads_ = omp_get_num_threads();
                meeting = std::make_unique<Barrier>(threads_);
            }
            Barrier& barrier = *meeting;
            const int thread = omp_get_thread_num();
            Scratch scratch;
            rows(thread, batch.num_tokens, [&](int64_t t) { embed(batch.token_ids[t], t); });
            barrier.wait();
            for (int64_t layer = 0; layer < w_.num_layers; ++layer) run_layer(batch, layer, thread, barrier, scratch);
            rows(thread, batch.num_wanted, [&](int64_t i) {
                normalize(hidden_ + batch.wanted[i] * w_.hidden, w_.norm, w_.hidden, w_.norm_eps,
                          states + i * padded(w_.hidden));
            });
        }
    }

    void use_threads(int64_t count) { w_.num_threads = count; }

    void logits(Activation* states, int64_t count, float* out) {
        std::atomic<int64_t> counter{0};
        Inputs x = head_buffer_.at_least(is_quantized_ ? count : 0, w_.hidden, is_quantized_);
        x.plain = states;
        for (int64_t i = 0; is_quantized_ && i < count; ++i) x.quantize(i);
#pragma omp parallel num_threads(static_cast<int>(w_.num_threads))
        {
            LinearScratch scratch;
            linear(w_.head, x, count, counter, scratch, [&](int64_t row, int64_t column, const float* sums, int64_t size) {
                std::memcpy(out + row * w_.head.n + column, sums, size * 4);
            });
        }
    }

private:
    static constexpr int64_t kStages = 5;

    void start(const Batch& batch) {
        const int64_t tokens = batch.num_tokens;
        hidden_ = hidden_buffer_.at_least(tokens * w_.hidden);
        x_ = x_buffer_.at_least(tokens, w_.hidden, is_quantized_);
        qkv_ = qkv_buffer_.at_least(tokens * qkv_size());
        attended_ = attended_buffer_.at_least(tokens, w_.heads * w_.head_dim, is_quantized_);
        act_ = act_buffer_.at_least(tokens, w_.intermediate, is_quantized_);
        counters_ = std::vector<std::atomic<int64_t>>(w_.num_layers * kStages);
        jobs_.clear();
        for (int64_t item = 0; item < batch.num_items; ++item)
            for (int64_t t = batch.cu_query_lens[item]; t < batch.cu_query_lens[item + 1]; t += kQueries)
                jobs_.push_back({item, t, std::min<int64_t>(kQueries, batch.cu_query_lens[item + 1] - t)});
    }

    static bool has_quants(const Linear& linear) {
        return is_quantized(linear.blocks, (linear.n + kColumns - 1) / kColumns * 4);
    }

    int64_t qkv_size() const { return (w_.heads + 2 * w_.kv_heads) * w_.head_dim; }

    template <typename Work>
    void rows(int thread, int64_t count, const Work& work) {
        for (int64_t i = thread; i < count; i += threads_) work(i);
    }

    // Units of 64 outputs are assigned to threads one by one. store(row, column, sums, size) receives a row of a unit.
    template <typename Store>
    void linear(const Linear& layer, const Inputs& x, int64_t count, std::atomic<int64_t>& counter,
                LinearScratch& scratch, const Store& store) {
        const int64_t units = (layer.n + kColumns - 1) / kColumns;
        for (int64_t unit; (unit = counter.fetch_add(1, std::memory_order_relaxed)) < units;) {
            const int64_t column = unit * kColumns, size = std::min(kColumns, layer.n - column);
            multiply_unit(layer.blocks + unit * 4, x, count, scratch, [&](int64_t row, float* sums) {
                if (layer.bias)
                    for (int64_t c = 0; c < size; ++c) sums[c] += layer.bias[column + c];
                store(row, column, sums, size);
            });
        }
    }

    void run_layer(const Batch& batch, int64_t index, int thread, Barrier& barrier, Scratch& scratch) {
        const LayerWeights& layer = layers_[index];
        std::atomic<int64_t>* counter = &counters_[index * kStages];
        const int64_t tokens = batch.num_tokens, qkv_stride = qkv_size();
        rows(thread, tokens, [&](int64_t t) { prepare(t, layer.input_norm); });
        barrier.wait();
        linear(layer.qkv, x_, tokens, counter[0], scratch.linear, [&](int64_t row, int64_t column, const float* sums, int64_t size) {
            std::memcpy(qkv_ + row * qkv_stride + column, sums, size * 4);
        });
        barrier.wait();
        rows(thread, tokens, [&](int64_t t) { place(batch, layer, index, t); });
        barrier.wait();
        attend_all(batch, layer, index, counter[1], scratch);
        barrier.wait();
        if (is_quantized_) {
            rows(thread, tokens, [&](int64_t t) { attended_.quantize(t); });
            barrier.wait();
        }
        const auto add = [&](int64_t row, int64_t column, const float* sums, int64_t size) {
            float* to = hidden_ + row * w_.hidden + column;
            for (int64_t c = 0; c < size; ++c) to[c] += sums[c];
        };
        linear(layer.out, attended_, tokens, counter[2], scratch.linear, add);
        barrier.wait();
        rows(thread, tokens, [&](int64_t t) { prepare(t, layer.mlp_norm); });
        barrier.wait();
        linear(layer.gate_up, x_, tokens, counter[3], scratch.linear, [&](int64_t row, int64_t column, const float* sums, int64_t size) {
            Activation* to = act_.row(row) + column / 2;
            for (int64_t c = 0; c < size; c += 32)
                for (int64_t i = 0; i < 16; i += kLanes) {
                    const Vec gate = load(sums + c + i), up = load(sums + c + 16 + i);
                    store(to + c / 2 + i, gate / (1.0f + exp(-gate)) * up);
                }
            // The unit's 64 outputs are the 32 inputs of a group.
            if (is_quantized_) quantize_group(to, act_.quants, row, column / 2 / kGroup);
        });
        barrier.wait();
        linear(layer.down, act_, tokens, counter[4], scratch.linear, add);
        barrier.wait();
    }

    void embed(int64_t token, int64_t t) {
        const Block& block = w_.embedding[token / 16];
        float group[kGroup];
        float* to = hidden_ + t * w_.hidden;
        for (int64_t first = 0; first < w_.hidden; first += kGroup) {
            kWidenGroup[block.kind](block.data, first / kGroup, token % 16, group);
            for (float& number : group) number = kQuantizesInputs ? number : rounded(number);  // as linear layers do
            std::memcpy(to + first, group, std::min(kGroup, w_.hidden - first) * 4);
        }
    }

    // Normalizes the hidden state of a token for the next linear layer.
    void prepare(int64_t t, const float* weight) const {
        normalize(hidden_ + t * w_.hidden, weight, w_.hidden, w_.norm_eps, x_.row(t));
        if (is_quantized_) x_.quantize(t);
    }

    // Rotates the queries and keys of a token in place and stores its K and V.
    void place(const Batch& batch, const LayerWeights& layer, int64_t index, int64_t t) {
        const int64_t dim = w_.head_dim, kv_size = w_.kv_heads * dim;
        float* heads = qkv_ + t * qkv_size();
        for (int64_t h = 0; h < w_.heads + w_.kv_heads; ++h) {
            const bool is_query = h < w_.heads;
            rotate(heads + h * dim, dim, is_query ? layer.q_norm : layer.k_norm, w_.norm_eps, batch.cos + t * dim,
                   batch.sin + t * dim, is_query ? w_.scale : 1.0f);
        }
        const Pool& pool = pool_of(batch, index);
        const float *k = heads + w_.heads * dim, *v = k + kv_size;
        if (batch.is_int8) {
            int8_t* keys = reinterpret_cast<int8_t*>(keys_of(batch, index)) + pool.slots[t] * w_.kv_heads * row_bytes(dim);
            for (int64_t h = 0; h < w_.kv_heads; ++h) {
                put_row(k + h * dim, dim, keys + h * row_bytes(dim));
                put_row(v + h * dim, dim, keys + pool.layer_stride + h * row_bytes(dim));
            }
            return;
        }
        uint16_t* keys = reinterpret_cast<uint16_t*>(keys_of(batch, index)) + pool.slots[t] * kv_size;
        uint16_t* values = keys + pool.layer_stride / 2;
        for (int64_t i = 0; i < kv_size; i += kLanes) store(keys + i, load(k + i));
        for (int64_t i = 0; i < kv_size; i += kLanes) store(values + i, load(v + i));
    }

    void attend_all(const Batch& batch, const LayerWeights& layer, int64_t index, std::atomic<int64_t>& counter,
                    Scratch& scratch) {
        const int64_t dim = w_.head_dim, group = w_.heads / w_.kv_heads, stride = attended_.quants.k;
        const Pool& pool = pool_of(batch, index);
        const uint8_t *keys = keys_of(batch, index), *values = keys + pool.layer_stride;
        Cache cache{nullptr, nullptr, batch.page_size, w_.kv_heads, dim};
        if (batch.is_int8)
            cache.quant_keys = reinterpret_cast<const int8_t*>(keys), cache.quant_values = reinterpret_cast<const int8_t*>(values);
        else
            cache.keys = reinterpret_cast<const uint16_t*>(keys), cache.values = reinterpret_cast<const uint16_t*>(values);
        // A job of few rows computes all KV heads if there are enough jobs for all threads.
        const int64_t num_jobs = static_cast<int64_t>(jobs_.size()), most = kQueries * group;
        const int64_t heads = kFewRows && num_jobs >= 4 * threads_ ? w_.kv_heads : 1, parts = w_.kv_heads / heads;
        scratch.query.resize(std::max(most, kFewRows * heads) * dim);
        for (int64_t i; (i = counter.fetch_add(1, std::memory_order_relaxed)) < num_jobs * parts;) {
            const Job job = jobs_[i / parts];
            const int32_t* pages = pool.page_table + batch.item_rows[job.item] * pool.table_width;
            const int64_t position = batch.positions[job.token], first = i % parts * heads;
            float* query = scratch.query.data();
            const auto take = [&](int64_t kv_head, float* to) {
                for (int64_t t = 0; t < job.count; ++t)
                    std::memcpy(to + t * group * dim, qkv_ + (job.token + t) * qkv_size() + kv_head * group * dim, group * dim * 4);
            };
            Activation* out = attended_.row(job.token) + first * group * dim;
#if defined(__AMX_BF16__)
            if (job.count * group <= kFewRows) {
                for (int64_t h = 0; h < heads; ++h) take(first + h, query + h * job.count * group * dim);
                attend_few(cache, first, heads, group, query, pages, position, job.count, layer.window, out, stride,
                           scratch.linear.tiles, scratch.tiles);
                continue;
            }
#endif
            for (int64_t h = 0; h < heads; ++h, out += group * dim) {
                take(first + h, query);
#if defined(__AMX_BF16__)
                attend_with_tiles(cache, first + h, group, query, pages, position, job.count, layer.window, out, stride,
                                  scratch.linear.tiles, scratch.tiles);
#else
                const auto run = dim == 64 ? attend<64> : dim == 128 ? attend<128> : attend<0>;
                run(cache, first + h, group, query, pages, position, job.count, layer.window, out, stride, scratch.plain);
#endif
            }
        }
    }

    ModelWeights w_;
    const std::vector<LayerWeights> layers_;
    bool is_quantized_ = false;  // true if inputs of linear layers are quantized
    Buffer<float> hidden_buffer_, qkv_buffer_;
    InputBuffer x_buffer_, attended_buffer_, act_buffer_, head_buffer_;
    float *hidden_ = nullptr, *qkv_ = nullptr;
    Inputs x_{}, attended_{}, act_{};
    std::vector<Job> jobs_;
    std::vector<std::atomic<int64_t>> counters_;
    int threads_ = 1;  // number of threads of the current step
};

}  // namespace

extern "C" {

// Returns 0 if the operating system lets this process use AMX tiles, or the kernels do not need them.
int prepare() {
#if defined(__AMX_BF16__) && defined(__linux__)
    return static_cast<int>(syscall(SYS_arch_prctl, 0x1023, 18));  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
#else
    return 0;
#endif
}

Llama* create(const ModelWeights* weights) { return new Llama(*weights); }

void destroy(Llama* model) { delete model; }

// Returns the bytes of an activation: 2 for bfloat16, 4 for float32.
int activation_bytes() { return sizeof(Activation); }

// Returns 1 if linear layers use AMX tiles.
int has_tiles() { return !kQuantizesInputs; }

// Sets the number of threads of all later calls.
void use_threads(Llama* model, int64_t count) { model->use_threads(count); }

// states: [num_wanted][hidden, padded to 32]; the padding is zero.
void forward(Llama* model, const Batch* batch, Activation* states) { model->forward(*batch, states); }

void logits(Llama* model, Activation* states, int64_t count, float* out) { model->logits(states, count, out); }
}
