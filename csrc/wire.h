// Packs and sums gradients as they travel between ranks: in float32 or, compressed, in bfloat16, the upper half of a
// float32, rounded to nearest even. Every sum is made in float32. It is pure C++ and knows nothing of ranks or MPI.
#pragma once

#include <cstdint>

namespace engine {

// Packs float32[count] `values` as bfloat16[count]. residual: float32[count], or null; what earlier steps have lost by
// rounding, which is added first. It then holds what this step has lost.
void pack_bf16(const float* values, float* residual, uint16_t* packed, int64_t count);

// Sums `row_count` rows of bfloat16[count], `stride` apart, in float32, row after row, and rounds the sum once. Row
// `own` is not read: in its place are `values`, float32[count], rounded as pack_bf16() does it. residual:
// float32[count], or null; what rounding the sum loses is added to it.
void sum_bf16(const uint16_t* rows, int64_t row_count, int64_t stride, int64_t own, const float* values,
              float* residual, uint16_t* packed, int64_t count);

// Sums the rows other than `own`, and `values`, float32[count], in their place in the order. Writes the sum, which is
// not rounded, over `values`.
void sum_bf16_rows(const uint16_t* rows, int64_t row_count, int64_t stride, int64_t own, float* values, int64_t count);

// Does the same with float32 rows.
void sum_rows(const float* rows, int64_t row_count, int64_t stride, int64_t own, float* values, int64_t count);

void unpack_bf16(const uint16_t* packed, float* values, int64_t count);

// Does the same with stores that bypass the caches, for values that are not read soon.
void unpack_bf16_away(const uint16_t* packed, float* values, int64_t count);

}  // namespace engine
