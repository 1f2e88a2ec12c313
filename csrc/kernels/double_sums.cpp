#include "kernels/double_sums.h"

#include "kernels/vectorised.h"

namespace engine {

ENGINE_VECTORISED double sum_of(const float* x, int64_t length) {
    double sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < length; i++) sum += x[i];
    return sum;
}

ENGINE_VECTORISED double squared_distance(const float* a, const float* b, int64_t length) {
    double sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < length; i++) sum += double(a[i] - b[i]) * double(a[i] - b[i]);
    return sum;
}

}  // namespace engine
