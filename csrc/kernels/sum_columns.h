// Sums columns over many rows, as for gradients of biases.
#pragma once

#include <cstdint>

#include "kernels/bf16.h"

namespace engine {

constexpr int64_t rows_of_block = 512;
inline int64_t blocks_of(int64_t rows) { return (rows + rows_of_block - 1) / rows_of_block; }

// Sets sums (length) to the sums of the columns of values (rows, length), or adds them with `add`. Blocks of rows are
// summed in float32, in `of_blocks` (blocks_of(rows), length), and their sums in double. The order of additions does
// not depend on the number of threads.
void sum_columns(const float* values, int64_t rows, int64_t length, float* of_blocks, float* sums, bool add);
void sum_columns(const bf16* values, int64_t rows, int64_t length, float* of_blocks, float* sums, bool add);

}  // namespace engine
