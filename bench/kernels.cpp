// Times one linear layer and decode attention by the headers of model_runner/kernels, in processor time of one thread.
//
//     g++ -std=c++17 -O3 -ffp-contract=off -fno-math-errno -fno-trapping-math -march=native -mprefer-vector-width=512
//         -Wno-psabi -I model_runner/kernels bench/kernels.cpp -o build/kernels && build/kernels [outputs] [rounds]
//
// The layer has 576 inputs; with 1,024 outputs it stays in the L2 cache. Attention has 9 query heads, 3 KV heads, a head
// size of 64 and scattered pages of 16 tokens. Times are the shortest of the rounds, in microseconds.

#include <time.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "tile_decode.h"

namespace {

constexpr int64_t kInputs = 576, kGroups = kInputs / kGroup, kHeads = 9, kKvHeads = 3, kDim = 64, kPage = 16;
std::mt19937 source(1);

template <typename Work>
double best(int rounds, const Work& work) {
    double least = 1e18;
    for (int round = 0; round < rounds; ++round) {
        timespec before, after;
        clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &before);
        work();
        clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &after);
        least = std::min(least, (after.tv_sec - before.tv_sec) * 1e6 + (after.tv_nsec - before.tv_nsec) * 1e-3);
    }
    return least;
}

float random_number() { return static_cast<float>(static_cast<int>(source() % 2001) - 1000) / 500; }

void time_layer(const char* name, Kind kind, int64_t block_bytes, int64_t outputs, int rounds) {
    std::vector<uint8_t> data(block_bytes * outputs / 16);
    for (size_t i = 0; i < data.size(); ++i) data[i] = i % 2 ? 0x3c : source() & 0x37;  // no subnormal numbers
    std::vector<Block> blocks;
    for (int64_t b = 0; b < outputs / 16; ++b) blocks.push_back({data.data() + b * block_bytes, kind});
    LinearScratch scratch;
    InputBuffer buffer;
    std::printf("%-10s", name);
    for (int64_t rows : {1, 8, 32, 128, 256}) {
        const Inputs x = buffer.at_least(rows, kInputs, kQuantizesInputs);
        for (int64_t i = 0; i < rows * kInputs; ++i) store(x.plain + i, random_number());
        for (int64_t r = 0; kQuantizesInputs && r < rows; ++r) x.quantize(r);
        volatile float total = 0;
        const double time = best(rounds, [&] {
            for (int64_t unit = 0; unit < outputs / 64; ++unit)
                multiply_unit(blocks.data() + unit * 4, x, rows, scratch, [&](int64_t, float* sums) { total = total + sums[0]; });
        });
        std::printf("  %ld rows %.0f", static_cast<long>(rows), time);
    }
    std::printf("\n");
}

void time_attention(int64_t rows, int64_t context, bool is_int8, int rounds) {
    const int64_t pages = (context + kPage - 1) / kPage, slots = pages * rows * kPage, group = kHeads / kKvHeads;
    std::vector<uint16_t> kv(2 * slots * kKvHeads * kDim, 0x3c00);
    std::vector<int8_t> quants(2 * slots * kKvHeads * row_bytes(kDim), 1);
    std::vector<int32_t> table(pages * rows);
    for (size_t i = 0; i < table.size(); ++i) table[i] = static_cast<int32_t>(i);
    std::shuffle(table.begin(), table.end(), source);
    std::vector<float> query(kHeads * kDim);
    for (float& number : query) number = random_number() / 8;
    Cache cache{kv.data(), kv.data() + kv.size() / 2, kPage, kKvHeads, kDim};
    if (is_int8) cache.quant_keys = quants.data(), cache.quant_values = quants.data() + quants.size() / 2;
    std::vector<Activation> out(kHeads * kDim);
#if defined(__AMX_BF16__)
    Tiles tiles;
    TileScratch scratch;
#else
    AttentionScratch scratch;
#endif
    const double time = best(rounds, [&] {
        for (int64_t row = 0; row < rows; ++row) {
            const int32_t* own = table.data() + row * pages;
#if defined(__AMX_BF16__)
            attend_few(cache, 0, kKvHeads, group, query.data(), own, context - 1, 1, 0, out.data(), kHeads * kDim, tiles, scratch);
#else
            for (int64_t h = 0; h < kKvHeads; ++h)
                attend<kDim>(cache, h, group, query.data() + h * group * kDim, own, context - 1, 1, 0,
                             out.data() + h * group * kDim, kHeads * kDim, scratch);
#endif
        }
    });
    std::printf("attention, %s: %ld rows after %ld tokens %.0f\n", is_int8 ? "int8" : "bfloat16", static_cast<long>(rows),
                static_cast<long>(context), time);
}

}  // namespace

int main(int argc, char** argv) {
#if defined(__AMX_BF16__) && defined(__linux__)
    if (syscall(SYS_arch_prctl, 0x1023, 18) != 0) return 1;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
#endif
    const int64_t outputs = argc > 1 ? std::atol(argv[1]) : 1024;
    const int rounds = argc > 2 ? std::atoi(argv[2]) : 20;
    time_layer("bfloat16", kBfloat16, kInputs * 32, outputs, rounds);
    time_layer("Q8_0", kQ8_0, kGroups * Format<kQ8_0>::record, outputs, rounds);
    time_layer("Q4_1", kQ4_1, kGroups * Format<kQ4_1>::record, outputs, rounds);
    for (bool is_int8 : {false, true})
        for (int64_t rows : {1, 32})
            for (int64_t context : {200, 1000}) time_attention(rows, context, is_int8, rounds);
}
