// Sums of rows.
#pragma once

#include <cstdint>

#include "kernels/bf16.h"

namespace engine {

// y += x, in float32.
void add_row(const float* x, float* y, int64_t length);
void add_row(const bf16* x, float* y, int64_t length);

}  // namespace engine
