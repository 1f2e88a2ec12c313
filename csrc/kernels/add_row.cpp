#include "kernels/add_row.h"

#include "kernels/vectorised.h"

namespace engine {
namespace {

template <typename From, typename To>
ENGINE_VECTORISED void add(const From* x, To* y, int64_t length) {
#pragma omp simd
    for (int64_t i = 0; i < length; i++) store(number(y[i]) + number(x[i]), y[i]);
}

}  // namespace

void add_row(const float* x, float* y, int64_t length) { add(x, y, length); }
void add_row(const bf16* x, float* y, int64_t length) { add(x, y, length); }
void add_row(const bf16* x, bf16* y, int64_t length) { add(x, y, length); }

ENGINE_VECTORISED void add_scaled(float factor, const float* x, float* y, int64_t length) {
#pragma omp simd
    for (int64_t i = 0; i < length; i++) y[i] += factor * x[i];
}

ENGINE_VECTORISED void add_products(const float* a, const float* b, float* y, int64_t length) {
#pragma omp simd
    for (int64_t i = 0; i < length; i++) y[i] += a[i] * b[i];
}

}  // namespace engine
