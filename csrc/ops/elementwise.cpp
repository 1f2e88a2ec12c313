#include "elementwise.h"

#include "vectorised.h"

namespace engine {

ENGINE_VECTORISED static void sum_of_two(const float* a, float ca, const float* b, float cb, float* y, int64_t length) {
#pragma omp simd
    for (int64_t i = 0; i < length; i++) y[i] = ca * a[i] + cb * b[i];
}

ENGINE_VECTORISED void scaled(const float* x, float coefficient, float* y, int64_t length) {
#pragma omp simd
    for (int64_t i = 0; i < length; i++) y[i] = coefficient * x[i];
}

ENGINE_VECTORISED static void clamp(float* y, int64_t length) {
#pragma omp simd
    for (int64_t i = 0; i < length; i++) y[i] = y[i] < 0 ? 0.f : y[i];
}

void weighted_sum(const std::vector<const float*>& x, const std::vector<float>& coefficients, float* y, int64_t count,
                  bool relu) {
    if (x.size() == 1) {
        in_chunks(count, [&](int64_t begin, int64_t length) {
            scaled(x[0] + begin, coefficients[0], y + begin, length);
            if (relu) clamp(y + begin, length);
        });
        return;
    }
    fold_chunks(x, y, count, [&](size_t i, const float* sum, const float* term, float* into, int64_t, int64_t length) {
        sum_of_two(sum, i == 1 ? coefficients[0] : 1.f, term, coefficients[i], into, length);
        if (relu && i + 1 == x.size()) clamp(into, length);
    });
}

}  // namespace engine
