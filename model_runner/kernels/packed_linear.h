// Linear layers with packed weights: AMX tiles, AVX512-BF16, or float32 multiply-adds.
//
// Weights are packed in blocks of 16 outputs. In bfloat16 a block is [K / 2][16][2]: the 32-bit lane n of a row holds the
// two weights k, k + 1 of output n. All three use this layout: it is AMX's tile of 16 pairs, one operand of vdpbf16ps,
// and two shifts from float32. AMX tiles multiply quantized weights as bfloat16 too; without AMX, their inputs are
// quantized (quantized_linear.h). K is padded to a multiple of 32 with zeros. An output's sum runs over k in an order
// that depends on the instruction set only, never on the number of rows: a row's result is the same in every batch.

#pragma once

#include <algorithm>

#include "buffer.h"
#include "quantized_linear.h"
#include "tile_linear.h"

// The element type of the inputs of bfloat16 weights: bfloat16 if the CPU multiplies bfloat16, else float32.
#if defined(__AMX_BF16__) || defined(__AVX512BF16__)
using Activation = uint16_t;
#else
using Activation = float;
#endif

#if defined(__AMX_BF16__)
constexpr bool kQuantizesInputs = false;
#else
constexpr bool kQuantizesInputs = true;  // of layers with quantized weights
#endif

struct Linear {
    const Block* blocks;  // their number is a multiple of 4; blocks after the last output repeat another block
    const float* bias;    // [N] or null
    int64_t n, k;         // k includes the padding
};

inline bool is_quantized(const Block* blocks, int64_t count) {
    return std::any_of(blocks, blocks + count, [](const Block& block) { return block.kind != kBfloat16; });
}

inline int64_t padded(int64_t k) { return (k + kGroup - 1) / kGroup * kGroup; }

// Rows of inputs of a linear layer, padded with zeros. The quantized rows exist only if they are needed.
struct Inputs {
    Activation* plain;  // [rows][quants.k]
    QuantRows quants;

    Activation* row(int64_t index) const { return plain + index * quants.k; }
    void quantize(int64_t index) const { quantize_row(row(index), quants, index); }
};

class InputBuffer {
public:
    Inputs at_least(int64_t rows, int64_t k, bool is_quantized) {
        const int64_t size = rows * padded(k);
        Activation* plain = plain_.at_least(size);
        if (!is_quantized) return {plain, {nullptr, nullptr, padded(k)}};
        return {plain, {quants_.at_least(size), scales_.at_least(size / kGroup), padded(k)}};
    }

private:
    Buffer<Activation> plain_;
    Buffer<int8_t> quants_;
    Buffer<GroupScale> scales_;
};

#if defined(__AMX_BF16__)

// The buffers and tiles of one thread for linear layers.
struct LinearScratch {
    Buffer<float> sums;
    Buffer<uint16_t> weights;  // dequantized
    Tiles tiles;
};

constexpr int64_t kStep = 4;  // groups of inputs that are dequantized at a time for few rows

// The products of ``count`` rows with the 64 outputs of 4 blocks. take(row, sums) receives each row once.
template <typename Take>
inline void multiply_unit(const Block* blocks, const Inputs& x, int64_t count, LinearScratch& s, const Take& take) {
    const int64_t k = x.quants.k, groups = k / kGroup;
    float* sums = s.sums.at_least(kRows * kColumns);
    int64_t step = groups;
    uint16_t* buffer = nullptr;
    Block dequantized[4];
    if (is_quantized(blocks, 4)) {
        if (count <= kRows) step = std::min(groups, kStep);
        buffer = s.weights.at_least(4 * step * kElements);
        for (int b = 0; count > kRows && b < 4; ++b) {  // once for all rows
            const uint16_t* weights = take_groups(blocks[b], 0, groups, buffer + b * groups * kElements);
            dequantized[b] = {reinterpret_cast<const uint8_t*>(weights), kBfloat16};
        }
        if (count > kRows) blocks = dequantized;
    }
    for (int64_t row = 0; row < count; row += kRows) {
        const int64_t part = std::min(kRows, count - row);
        multiply(x.row(row), part, blocks, k, step, buffer, s.tiles, sums);
        for (int64_t r = 0; r < part; ++r) take(row + r, sums + r * kColumns);
    }
}

#else

// The products of the inputs k, k + 1 of kLanes outputs with the pair of activations at x, added to sum.
inline Vec add_pair(Vec sum, const Activation* x, const uint16_t* w) {
    const Ints pairs = *reinterpret_cast<const Ints*>(w);
#if defined(__AVX512BF16__)
    int32_t pair;
    std::memcpy(&pair, x, 4);
    return reinterpret_cast<Vec>(_mm512_dpbf16_ps(reinterpret_cast<__m512>(sum),
                                                  reinterpret_cast<__m512bh>(_mm512_set1_epi32(pair)),
                                                  reinterpret_cast<__m512bh>(pairs)));
#else
    sum = multiply_add(reinterpret_cast<Vec>(pairs << 16), x[0], sum);
    return multiply_add(reinterpret_cast<Vec>(pairs & static_cast<int32_t>(0xffff0000)), x[1], sum);
#endif
}

template <int ROWS, int BLOCKS>
inline void multiply_part(const Activation* x, const uint16_t* const* w, int64_t k, float* sums) {
    Vec acc[ROWS][BLOCKS * kVecs] = {};
    for (int64_t i = 0; i < k; i += 2) {
        for (int b = 0; b < BLOCKS; ++b) {
            for (int v = 0; v < kVecs; ++v) {
                for (int r = 0; r < ROWS; ++r) {
                    Vec& sum = acc[r][b * kVecs + v];
                    sum = add_pair(sum, x + r * k + i, w[b] + i * 16 + v * 2 * kLanes);
                }
            }
        }
    }
    for (int r = 0; r < ROWS; ++r)
        for (int v = 0; v < BLOCKS * kVecs; ++v) store(sums + r * kColumns + v * kLanes, acc[r][v]);
}

// ROWS x BLOCKS sums stay in registers; the remaining rows are computed with smaller ROWS.
template <int ROWS, int BLOCKS>
inline void multiply_by(const Activation* x, int64_t rows, const uint16_t* const* w, int64_t k, float* sums) {
    int64_t r = 0;
    for (; r + ROWS <= rows; r += ROWS)
        for (int b = 0; b < 4; b += BLOCKS)
            multiply_part<ROWS, BLOCKS>(x + r * k, w + b, k, sums + r * kColumns + b * 16);
    if constexpr (ROWS > 1) {
        constexpr int kMore = BLOCKS < 4 ? 2 * BLOCKS : 4;
        if (r < rows) multiply_by<ROWS / 2, kMore>(x + r * k, rows - r, w, k, sums + r * kColumns);
    }
}

__attribute__((noinline)) inline void multiply(const Activation* x, int64_t rows, const uint16_t* const* w, int64_t k,
                                               float* sums) {
    multiply_by<4, kLanes == 16 ? 4 : 1>(x, rows, w, k, sums);
}

constexpr int64_t kManyRows = 256;  // rows of one block of results with quantized weights

struct LinearScratch {
    Buffer<float> sums;
};

// sums[count][64] = the products of rows with the outputs of 4 blocks, of which at least one is quantized.
inline void multiply_mixed(const Block* blocks, const Inputs& x, int64_t row, int64_t count, float* sums) {
    const Block* plain = std::find_if(blocks, blocks + 4, [](const Block& block) { return block.kind == kBfloat16; });
    if (plain != blocks + 4) {  // the products of other blocks are overwritten below
        const uint16_t* weights[4];
        for (int b = 0; b < 4; ++b)
            weights[b] = reinterpret_cast<const uint16_t*>((blocks[b].kind == kBfloat16 ? blocks[b] : *plain).data);
        for (int64_t r = 0; r < count; r += kRows)
            multiply(x.row(row + r), std::min(kRows, count - r), weights, x.quants.k, sums + r * kColumns);
    }
    for (int b = 0; b < 4; ++b)
        if (blocks[b].kind != kBfloat16)
            kMultiplyQuants[blocks[b].kind](blocks[b].data, x.quants, row, count, sums + b * 16, kColumns);
}

template <typename Take>
inline void multiply_unit(const Block* blocks, const Inputs& x, int64_t count, LinearScratch& s, const Take& take) {
    const bool is_mixed = is_quantized(blocks, 4);
    const int64_t most = is_mixed ? kManyRows : kRows;
    float* sums = s.sums.at_least(most * kColumns);
    const uint16_t* weights[4];
    for (int b = 0; b < 4; ++b) weights[b] = reinterpret_cast<const uint16_t*>(blocks[b].data);
    for (int64_t row = 0; row < count; row += most) {
        const int64_t part = std::min(most, count - row);
        if (is_mixed)
            multiply_mixed(blocks, x, row, part, sums);
        else
            multiply(x.row(row), part, weights, x.quants.k, sums);
        for (int64_t r = 0; r < part; ++r) take(row + r, sums + r * kColumns);
    }
}

#endif
