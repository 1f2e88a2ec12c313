#include "kernels/sum_columns.h"

#include <algorithm>

#include "kernels/chunks.h"
#include "kernels/vectorised.h"

namespace engine {
namespace {

constexpr int64_t strip = 256;  // columns at a time, whose sums stay in the first-level cache

template <typename Number>
ENGINE_VECTORISED void sum_block(const Number* values, int64_t rows, int64_t pitch, int64_t length, float* sums) {
    std::fill_n(sums, length, 0.f);
    for (int64_t row = 0; row < rows; row++, values += pitch) {
#pragma omp simd
        for (int64_t i = 0; i < length; i++) sums[i] += number(values[i]);
    }
}

ENGINE_VECTORISED void sum_blocks(const float* of_blocks, int64_t blocks, int64_t pitch, int64_t length, float* sums,
                                  bool add) {
    double totals[strip] = {};
    for (int64_t block = 0; block < blocks; block++, of_blocks += pitch)
        for (int64_t i = 0; i < length; i++) totals[i] += double(of_blocks[i]);
    for (int64_t i = 0; i < length; i++) sums[i] = float(totals[i] + (add ? double(sums[i]) : 0));
}

template <typename Number>
void sum(const Number* values, int64_t rows, int64_t length, float* of_blocks, float* sums, bool add) {
    const int64_t blocks = blocks_of(rows);
#pragma omp parallel if (rows * length > chunk_size)
    {
#pragma omp for collapse(2) schedule(static)
        for (int64_t block = 0; block < blocks; block++)
            for (int64_t begin = 0; begin < length; begin += strip) {
                const int64_t first = block * rows_of_block;
                sum_block(values + first * length + begin, std::min(rows_of_block, rows - first), length,
                          std::min(strip, length - begin), of_blocks + block * length + begin);
            }
#pragma omp for schedule(static)
        for (int64_t begin = 0; begin < length; begin += strip)
            sum_blocks(of_blocks + begin, blocks, length, std::min(strip, length - begin), sums + begin, add);
    }
}

}  // namespace

void sum_columns(const float* values, int64_t rows, int64_t length, float* of_blocks, float* sums, bool add) {
    sum(values, rows, length, of_blocks, sums, add);
}

void sum_columns(const bf16* values, int64_t rows, int64_t length, float* of_blocks, float* sums, bool add) {
    sum(values, rows, length, of_blocks, sums, add);
}

}  // namespace engine
