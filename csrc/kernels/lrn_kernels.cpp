#include "kernels/lrn_kernels.h"

#include <algorithm>

#include "kernels/vectorised.h"

namespace engine {

namespace {

constexpr int64_t most_columns = 256;

// What depends on nothing else: columns [begin, end) of one sample, whose rows are the channels; or a plane of one
// channel, where neighbours lie in all directions.
struct Part {
    int64_t offset, rows, step, width, begin, end, half;
    bool plane;
};

template <bool squared>
ENGINE_INLINE void add(const float* x, float* sum, int64_t length) {
#pragma omp simd
    for (int64_t i = 0; i < length; i++) sum[i] += squared ? x[i] * x[i] : x[i];
}

// sum[i] = that of x, or of x^2, over the neighbours of column begin + i of a row.
template <bool squared>
ENGINE_INLINE void add_up(const Part& part, const float* x, int64_t row, int64_t begin, int64_t end, float* sum) {
    std::fill_n(sum, end - begin, 0.f);
    const int64_t last = std::min(row + part.half, part.rows - 1);
    for (int64_t other = std::max<int64_t>(row - part.half, 0); other <= last; other++) {
        const float* const from = x + other * part.step;
        if (!part.plane) {
            add<squared>(from + begin, sum, end - begin);
            continue;
        }
        for (int64_t shift = -part.half; shift <= part.half; shift++) {
            const int64_t first = std::max(begin, -shift), behind = std::min(end, part.width - shift);
            add<squared>(from + first + shift, sum + first - begin, behind - first);
        }
    }
}

// Calls work(row, begin, end) for stretches of the part's rows.
template <typename Work>
ENGINE_INLINE void over_stretches(const Part& part, const Work& work) {
    for (int64_t row = 0; row < part.rows; row++)
        for (int64_t begin = part.begin; begin < part.end; begin += most_columns)
            work(row, begin, std::min(begin + most_columns, part.end));
}

ENGINE_VECTORISED void values_of(const Part& part, const LrnKernels& lrn, const float* x, float* scales, float* y) {
    over_stretches(part, [&](int64_t row, int64_t begin, int64_t end) ENGINE_BODY {
        float* const scale = scales + row * part.step;
        add_up<true>(part, x, row, begin, end, scale + begin);
        const float* const from = x + row * part.step;
        float* const into = y + row * part.step;
#pragma omp simd
        for (int64_t i = begin; i < end; i++) {
            scale[i] = lrn.k + lrn.alpha * scale[i];
            into[i] = from[i] * powf(scale[i], -lrn.beta);
        }
    });
}

// given scales^-beta - 2 alpha beta x sum over the neighbours of given x scales^-(beta + 1)
ENGINE_VECTORISED void gradients_of(const Part& part, const LrnKernels& lrn, const float* x, const float* scales,
                                    const float* given, float* ratios, float* wanted) {
    over_stretches(part, [&](int64_t row, int64_t begin, int64_t end) ENGINE_BODY {
        const int64_t at = row * part.step;
#pragma omp simd
        for (int64_t i = at + begin; i < at + end; i++) {
            wanted[i] = given[i] * powf(scales[i], -lrn.beta);
            ratios[i] = wanted[i] * x[i] / scales[i];
        }
    });
    const float factor = 2 * lrn.alpha * lrn.beta;
    over_stretches(part, [&](int64_t row, int64_t begin, int64_t end) ENGINE_BODY {
        float sum[most_columns];
        add_up<false>(part, ratios, row, begin, end, sum);
        const float* const from = x + row * part.step + begin;
        float* const into = wanted + row * part.step + begin;
#pragma omp simd
        for (int64_t i = 0; i < end - begin; i++) into[i] -= factor * from[i] * sum[i];
    });
}

}  // namespace

// In parallel.
template <typename Work>
void LrnKernels::in_parts(const Work& work) const {
    const int64_t plane = height * width, groups = (plane + most_columns - 1) / most_columns;
    const int64_t parts = outer * (across_channels ? groups : channels);
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < parts; i++) {
        const int64_t begin = i % groups * most_columns, end = std::min(begin + most_columns, plane);
        if (across_channels)
            work(Part{i / groups * channels * plane, channels, plane, plane, begin, end, size / 2, false});
        else
            work(Part{i * plane, height, width, width, 0, width, size / 2, true});
    }
}

void LrnKernels::values(const float* x, float* scales, float* y) const {
    in_parts([&](const Part& part) { values_of(part, *this, x + part.offset, scales + part.offset, y + part.offset); });
}

void LrnKernels::gradients(const float* x, const float* scales, const float* given, float* ratios,
                           float* wanted) const {
    in_parts([&](const Part& part) {
        const int64_t at = part.offset;
        gradients_of(part, *this, x + at, scales + at, given + at, ratios + at, wanted + at);
    });
}

}  // namespace engine
