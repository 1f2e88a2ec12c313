#include "ops/common/softmax_op.h"

#include <omp.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "kernels/vectorised.h"
#include "ops/common/elementwise.h"
#include "threads.h"

namespace engine {

namespace {

// Computes softmax down `width` columns, whose rows are `step` apart. It works in `strip`, (classes, width), because
// rows that lie far apart may compete for the same places in the cache.
ENGINE_VECTORISED void values(const float* x, float* y, int64_t classes, int64_t step, int64_t width, float* strip) {
    alignas(64) float largest[Strips::widest], sum[Strips::widest];
    std::copy_n(x, width, largest);
    for (int64_t c = 0; c < classes; c++) {
        const float* const row = x + c * step;
        float* const kept = strip + c * width;
#pragma omp simd
        for (int64_t i = 0; i < width; i++) {
            kept[i] = row[i];
            largest[i] = row[i] > largest[i] ? row[i] : largest[i];
        }
    }
    std::fill_n(sum, width, 0.f);
    for (int64_t c = 0; c < classes; c++) {
        float* const kept = strip + c * width;
#pragma omp simd
        for (int64_t i = 0; i < width; i++) sum[i] += kept[i] = expf(kept[i] - largest[i]);
    }
#pragma omp simd
    for (int64_t i = 0; i < width; i++) sum[i] = 1 / sum[i];
    for (int64_t c = 0; c < classes; c++) {
        const float* const kept = strip + c * width;
        float* const into = y + c * step;
#pragma omp simd
        for (int64_t i = 0; i < width; i++) into[i] = kept[i] * sum[i];
    }
}

// wanted = y (given - sum of y given), down `width` columns of `rows` rows; `lanes` neighbouring columns are one
// pixel's, whose sum is over them, too.
ENGINE_VECTORISED void gradients(const float* y, const float* given, float* wanted, int64_t rows, int64_t step,
                                 int64_t width, int64_t lanes) {
    alignas(64) float sum[Strips::widest] = {};
    for (int64_t c = 0; c < rows; c++) {
        const float *const p = y + c * step, *const g = given + c * step;
#pragma omp simd
        for (int64_t i = 0; i < width; i++) sum[i] += p[i] * g[i];
    }
    if (lanes > 1)
        for (float* pixel = sum; pixel < sum + width; pixel += lanes)
            std::fill_n(pixel, lanes, std::accumulate(pixel, pixel + lanes, 0.f));
    for (int64_t c = 0; c < rows; c++) {
        const float *const p = y + c * step, *const g = given + c * step;
        float* const into = wanted + c * step;
#pragma omp simd
        for (int64_t i = 0; i < width; i++) into[i] = p[i] * (g[i] - sum[i]);
    }
}

// Does the same for `count` pixels, `step` apart, whose classes lie side by side.
ENGINE_VECTORISED void gradients_in_rows(const float* y, const float* given, float* wanted, int64_t classes,
                                         int64_t step, int64_t count) {
    for (int64_t pixel = 0; pixel < count; pixel++, y += step, given += step, wanted += step) {
        float sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int64_t c = 0; c < classes; c++) sum += y[c] * given[c];
#pragma omp simd
        for (int64_t c = 0; c < classes; c++) wanted[c] = y[c] * (given[c] - sum);
    }
}

// Makes all probabilities of a pixel NaN if one is: with a score that is NaN, oneDNN makes some of them 0.
void spread_nans(const ChannelRows& rows, float* y) {
    const int64_t lanes = rows.lanes;
#pragma omp parallel for collapse(2) schedule(static) if (!rows.small())
    for (int64_t n = 0; n < rows.outer; n++)
        for (int64_t i = 0; i < rows.inner; i++) {
            float* const pixel = y + rows.offset(n, 0) + i * rows.inner_stride;
            const auto each = [&](const auto& work) {
                for (int64_t block = 0; block < rows.blocks(); block++)
                    work(pixel + block * rows.block_stride, std::min(lanes, rows.channels - block * lanes));
            };
            float sum = 0;
            each([&](const float* values, int64_t count) {
#pragma omp simd reduction(+ : sum)
                for (int64_t lane = 0; lane < count; lane++) sum += values[lane];
            });
            if (!std::isnan(sum)) continue;
            each([&](float* values, int64_t count) {
                std::fill_n(values, count, std::numeric_limits<float>::quiet_NaN());
            });
        }
}

}  // namespace

void SoftmaxOp::add_softmax(const TensorPtr& x, const TensorPtr& y, int axis) {
    x_ = x;
    y_ = y;
    threads_ = threads();
    classes_ = x->shape.at(axis);
    outer_ = count_of(Dims(x->shape.begin(), x->shape.begin() + axis));
    inner_ = count_of(Dims(x->shape.begin() + axis + 1, x->shape.end()));
    rows_ = is_plain(x->layout) ? ChannelRows::plain(outer_, classes_, inner_) : known_rows(x->layout);
    in_columns_ = inner_ > 1 && is_plain(x->layout);
    touch(Pass::forward, {x, y});
    may_overwrite(Pass::forward, x, y);
    if (in_columns_) {
        columns_ = scratch(plain_layout({threads_, classes_ * strips().width()}));
        return;
    }
    const dnnl::softmax_forward::primitive_desc pd(cpu(), forward_kind(spec_), algorithm::softmax_accurate, x->layout,
                                                   x->layout, axis, user_scratchpad());
    forward_calls_.push_back(
        {dnnl::softmax_forward(pd),
         {{DNNL_ARG_SRC, x->memory}, {DNNL_ARG_DST, y->memory}, {DNNL_ARG_SCRATCHPAD, scratch(pd.scratchpad_desc())}}});
    implementation_ = pd.impl_info_str();
}

void SoftmaxOp::add_softmax_backward(const TensorPtr& wanted) {
    wanted_ = wanted;
    touch(Pass::backward, {y_, y_->diff, wanted});
    may_overwrite(Pass::backward, y_->diff, wanted);
}

void SoftmaxOp::forward(const dnnl::stream& stream) {
    if (!in_columns_) {
        Op::forward(stream);
        spread_nans(rows_, y_->data());
        return;
    }
    strips().each([this](int64_t, int64_t n, int64_t begin, int64_t width) { compute_strip(n, begin, width); });
}

void SoftmaxOp::compute_strip(int64_t n, int64_t begin, int64_t width) const {
    const int64_t at = n * classes_ * inner_ + begin;
    float* const strip = address<float>(columns_) + omp_get_thread_num() * classes_ * strips().width();
    values(x_->data() + at, y_->data() + at, classes_, inner_, width, strip);
}

void SoftmaxOp::backward(const dnnl::stream&) {
    if (!wanted_) return;
    const float *const y = y_->data(), *const given = y_->diff->data();
    float* const wanted = wanted_->data();
    const int64_t blocks = rows_.blocks(), most = Strips::widest / rows_.lanes;
    strips().each([&](int64_t, int64_t n, int64_t begin, int64_t width) {
        int64_t at = rows_.offset(n, 0) + begin * rows_.inner_stride;
        if (blocks == 1) return gradients_in_rows(y + at, given + at, wanted + at, classes_, rows_.inner_stride, width);
        for (int64_t done = 0; done < width; done += most, at += most * rows_.lanes)
            gradients(y + at, given + at, wanted + at, blocks, rows_.block_stride,
                      std::min(most, width - done) * rows_.lanes, rows_.lanes);
    });
    clear_padding(rows_, sizeof(float), wanted);
}

}  // namespace engine
