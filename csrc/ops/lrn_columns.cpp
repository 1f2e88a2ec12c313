#include "lrn_columns.h"

#include <algorithm>

#include "vectorised.h"

namespace engine {

namespace {

// A few columns of one sample, whose rows, the channels, are `step` apart.
struct Columns {
    int64_t channels, step, width, half;
    int64_t first(int64_t c) const { return std::max<int64_t>(c - half, 0); }
    int64_t last(int64_t c) const { return std::min(c + half, channels - 1); }
};

constexpr int64_t most_columns = 256;

ENGINE_VECTORISED void values_of(const Columns& at, const LrnColumns& lrn, const float* x, float* scales, float* y) {
    for (int64_t c = 0; c < at.channels; c++) {
        float* const scale = scales + c * at.step;
        std::fill_n(scale, at.width, 0.f);
        for (int64_t other = at.first(c); other <= at.last(c); other++) {
            const float* const row = x + other * at.step;
#pragma omp simd
            for (int64_t i = 0; i < at.width; i++) scale[i] += row[i] * row[i];
        }
        const float* const row = x + c * at.step;
        float* const into = y + c * at.step;
#pragma omp simd
        for (int64_t i = 0; i < at.width; i++) {
            scale[i] = lrn.k + lrn.alpha * scale[i];
            into[i] = row[i] * powf(scale[i], -lrn.beta);
        }
    }
}

// given scales^-beta - 2 alpha beta x sum over the neighbours of given x scales^-(beta + 1)
ENGINE_VECTORISED void gradients_of(const Columns& at, const LrnColumns& lrn, const float* x, const float* scales,
                                    const float* given, float* ratios, float* wanted) {
    for (int64_t c = 0; c < at.channels; c++) {
        const int64_t row = c * at.step;
#pragma omp simd
        for (int64_t i = row; i < row + at.width; i++) {
            wanted[i] = given[i] * powf(scales[i], -lrn.beta);
            ratios[i] = wanted[i] * x[i] / scales[i];
        }
    }
    const float factor = 2 * lrn.alpha * lrn.beta;
    for (int64_t c = 0; c < at.channels; c++) {
        float sum[most_columns] = {};
        for (int64_t other = at.first(c); other <= at.last(c); other++) {
            const float* const row = ratios + other * at.step;
#pragma omp simd
            for (int64_t i = 0; i < at.width; i++) sum[i] += row[i];
        }
        const float* const row = x + c * at.step;
        float* const into = wanted + c * at.step;
#pragma omp simd
        for (int64_t i = 0; i < at.width; i++) into[i] -= factor * row[i] * sum[i];
    }
}

}  // namespace

// Calls work(columns, offset of their first element), in parallel.
template <typename Work>
void LrnColumns::over_columns(const Work& work) const {
    const int64_t groups = (inner + most_columns - 1) / most_columns;
#pragma omp parallel for schedule(static)
    for (int64_t group = 0; group < outer * groups; group++) {
        const int64_t begin = group % groups * most_columns;
        const Columns columns{channels, inner, std::min(most_columns, inner - begin), size / 2};
        work(columns, group / groups * channels * inner + begin);
    }
}

void LrnColumns::values(const float* x, float* scales, float* y) const {
    over_columns([&](const Columns& at, int64_t begin) { values_of(at, *this, x + begin, scales + begin, y + begin); });
}

void LrnColumns::gradients(const float* x, const float* scales, const float* given, float* ratios,
                           float* wanted) const {
    over_columns([&](const Columns& at, int64_t begin) {
        gradients_of(at, *this, x + begin, scales + begin, given + begin, ratios + begin, wanted + begin);
    });
}

}  // namespace engine
