// Adds rows to other rows.
#pragma once

#include <cstdint>

#include "kernels/bf16.h"

namespace engine {

// y += x, in float32; rounded once if y is bf16.
void add_row(const float* x, float* y, int64_t length);
void add_row(const bf16* x, float* y, int64_t length);
void add_row(const bf16* x, bf16* y, int64_t length);
// y += factor x.
void add_scaled(float factor, const float* x, float* y, int64_t length);
// y += a b, element by element.
void add_products(const float* a, const float* b, float* y, int64_t length);

}  // namespace engine
