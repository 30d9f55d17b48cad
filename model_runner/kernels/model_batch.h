// The weights of a model and the batch of a step, as the Python code passes them.

#pragma once

#include "packed_linear.h"

struct LayerWeights {
    const float *input_norm, *q_norm, *k_norm, *mlp_norm;  // q_norm and k_norm: null, or [head_dim]
    Linear qkv, out, gate_up, down;                        // gate_up: blocks of 16 outputs, gate and up in turn
    int64_t window;                                        // 0 for no window
};

struct ModelWeights {
    int64_t num_layers, hidden, intermediate, heads, kv_heads, head_dim, num_threads;
    float norm_eps, scale;
    const Block* embedding;  // [vocabulary][hidden]
    const float* norm;
    const LayerWeights* layers;
    Linear head;
};

// The K/V of some layers, and the places of the batch's tokens in it.
struct Pool {
    uint8_t* data;         // [layers of the pool][2][slots][kv_heads][bytes of a row]
    int64_t layer_stride;  // bytes of [slots][kv_heads][bytes of a row]
    const int64_t* slots;  // [T]
    const int32_t* page_table;
    int64_t table_width;
};

struct Batch {
    int64_t num_tokens, num_items, num_wanted;
    const int64_t *token_ids, *positions, *wanted, *item_rows;
    const int32_t* cu_query_lens;
    int64_t page_size, is_int8;  // is_int8: K and V are stored as in quantized_rows.h, else in bfloat16
    const float *cos, *sin;  // [T][head_dim]; the first half of the sines is negated
    const Pool* pools;
    const int64_t* places;  // [layers][2]: the pool that has the layer's K/V, and the layer's index in it
};

inline const Pool& pool_of(const Batch& batch, int64_t layer) { return batch.pools[batch.places[2 * layer]]; }

inline uint8_t* keys_of(const Batch& batch, int64_t layer) {
    const Pool& pool = pool_of(batch, layer);
    return pool.data + 2 * batch.places[2 * layer + 1] * pool.layer_stride;
}
