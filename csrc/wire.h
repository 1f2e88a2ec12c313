// Gradients as they travel, and their sums: float32, or when they are compressed bfloat16, the upper half of a float32,
// rounded to nearest even. Every sum is made in float32. Pure C++; knows nothing of ranks or MPI.
#pragma once

#include <cstdint>

namespace engine {

// values: float32[count] -> packed: bfloat16[count]. With `residual` (float32[count], or null) what earlier steps lost
// by rounding is added first, and what this one loses is kept there.
void pack_bf16(const float* values, float* residual, uint16_t* packed, int64_t count);

// Sums `row_count` rows of bfloat16[count], `stride` apart, in float32, row after row, and rounds the result once. Row
// `own` is not read: it is `values` (float32[count]) as pack_bf16 packs them. What rounding the sum loses is added to
// `residual` (float32[count], or null).
void sum_bf16(const uint16_t* rows, int64_t row_count, int64_t stride, int64_t own, const float* values,
              float* residual, uint16_t* packed, int64_t count);

// The same, but nothing is rounded: the sum of the other rows and of `values`, whose place it takes, stays float32.
void sum_bf16_rows(const uint16_t* rows, int64_t row_count, int64_t stride, int64_t own, float* values, int64_t count);

// The same of float32 rows.
void sum_rows(const float* rows, int64_t row_count, int64_t stride, int64_t own, float* values, int64_t count);

void unpack_bf16(const uint16_t* packed, float* values, int64_t count);

// The same past the caches, for values that nobody reads soon.
void unpack_bf16_away(const uint16_t* packed, float* values, int64_t count);

}  // namespace engine
