// Sums of columns over many rows, as in gradients of biases.
#pragma once

#include <cstdint>

#include "kernels/bf16.h"

namespace engine {

constexpr int64_t rows_of_block = 512;
inline int64_t blocks_of(int64_t rows) { return (rows + rows_of_block - 1) / rows_of_block; }

// sums (length) = those of the columns of `rows` rows, or += with `add`. Blocks of rows are summed in float32, into
// `of_blocks` (blocks_of(rows), length), and these in double. The order of additions does not depend on the number of
// threads.
void sum_columns(const float* values, int64_t rows, int64_t length, float* of_blocks, float* sums, bool add);
void sum_columns(const bf16* values, int64_t rows, int64_t length, float* of_blocks, float* sums, bool add);

}  // namespace engine
