#include "ops/common/elementwise.h"

#include <cstring>

#include "kernels/bf16.h"
#include "kernels/vectorised.h"

namespace engine {

ENGINE_VECTORISED static void widen(const bf16* x, float* y, int64_t length) {
#pragma omp simd
    for (int64_t i = 0; i < length; i++) y[i] = number(x[i]);
}

ENGINE_VECTORISED static void narrow(const float* x, bf16* y, int64_t length) {
#pragma omp simd
    for (int64_t i = 0; i < length; i++) store(x[i], y[i]);
}

const float* Numbers::read(int64_t begin, int64_t length, float* buffer) const {
    if (!narrow_) return floats() + begin;
    widen(address<bf16>(memory_) + begin, buffer, length);
    return buffer;
}

void Numbers::close(int64_t begin, int64_t length, const float* buffer) const {
    if (narrow_) narrow(buffer, address<bf16>(memory_) + begin, length);
}

void Numbers::clear() const { std::memset(memory_.get_data_handle(), 0, memory_.get_desc().get_size()); }

void Numbers::clear_padding(const ChannelRows& rows) const {
    engine::clear_padding(rows, narrow_ ? 2 : 4, memory_.get_data_handle());
}

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

void weighted_sum(const std::vector<Numbers>& x, const std::vector<float>& coefficients, const Numbers& y,
                  int64_t count, bool relu) {
    if (x.size() == 1) {
        in_chunks(count, [&](int64_t begin, int64_t length) {
            alignas(64) float buffer[chunk_size];
            float* const into = y.open(begin, buffer);
            scaled(x[0].read(begin, length, buffer), coefficients[0], into, length);
            if (relu) clamp(into, length);
            y.close(begin, length, into);
        });
        return;
    }
    fold_chunks(x, y, count, [&](size_t i, const float* sum, const float* term, float* into, int64_t, int64_t length) {
        sum_of_two(sum, i == 1 ? coefficients[0] : 1.f, term, coefficients[i], into, length);
        if (relu && i + 1 == x.size()) clamp(into, length);
    });
}

}  // namespace engine
