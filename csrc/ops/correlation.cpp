// Computes the correlation of windows of a with displaced windows of b (Dosovitskiy et al. 2015, FlowNet): for
// displacement d and window (i, j), y[d, i, j] is the mean over the channels and the window's (u, v) of a[i stride + u,
// j stride + v] b[i stride + u + down[d], j stride + v + across[d]], or with `subtract` of |a - b|. Both planes are
// padded with zeros.
// inputs: a (N, C, H, W), b (as a), float32, row-major; outputs: (N, D, h, w); attributes: pad and reach (of rows and
// of columns; reach: where the first window begins), kernel, stride, down and across (D each), subtract.
#include <algorithm>
#include <cmath>

#include "kernels/add_row.h"
#include "kernels/vectorised.h"
#include "ops/common/onednn_util.h"

namespace engine {
namespace {

ENGINE_VECTORISED float product(const float* a, const float* b, int64_t length) {
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < length; i++) sum += a[i] * b[i];
    return sum;
}

ENGINE_VECTORISED float difference(const float* a, const float* b, int64_t length) {
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < length; i++) sum += std::abs(a[i] - b[i]);
    return sum;
}

ENGINE_VECTORISED void add_signs(float factor, const float* a, const float* b, float* y, int64_t length) {
#pragma omp simd
    for (int64_t i = 0; i < length; i++) y[i] += a[i] >= b[i] ? factor : -factor;
}

class Correlation : public Op {
public:
    explicit Correlation(OpSpec spec) : Op(std::move(spec)), subtract_(spec_.attributes.flag("subtract")) {
        const Attributes& attributes = spec_.attributes;
        const Dims &in = input(0)->shape, &out = spec_.output_shapes[0];
        const Dims pad = attributes.integers("pad"), reach = attributes.integers("reach");
        pad_rows_ = pad[0];
        pad_ = pad[1];
        reach_rows_ = reach[0];
        reach_ = reach[1];
        kernel_ = attributes.integer("kernel");
        stride_ = attributes.integer("stride");
        down_ = attributes.integers("down");
        across_ = attributes.integers("across");
        samples_ = in[0];
        channels_ = in[1];
        height_ = in[2];
        width_ = in[3];
        rows_ = height_ + 2 * pad_rows_;
        columns_ = width_ + 2 * pad_;
        displacements_ = out[1];
        top_height_ = out[2];
        top_width_ = out[3];
        for (auto& padded : padded_) padded = scratch(plain_layout({samples_, rows_, columns_, channels_}));
        output(0, plain_layout(out));
        touch(Pass::forward, {input(0), input(1), outputs_[0]});
        if (!needs_backward() || !output_gradient(0)) return;
        fresh_scratch();  // the same places as in forward
        for (auto& padded : padded_) padded = scratch(plain_layout({samples_, rows_, columns_, channels_}));
        wanted_ = scratch(plain_layout({samples_, rows_, columns_, channels_}));
        touch(Pass::backward, {input(0), input(1), outputs_[0]->diff});
        for (const auto& each : spec_.inputs)
            if (each->diff) touch(Pass::backward, each->diff);
    }

    void forward(const dnnl::stream&) override {
        spread();
        const float scale = 1 / float(kernel_ * kernel_ * channels_);
        const int64_t run = kernel_ * channels_;
#pragma omp parallel for collapse(2) schedule(static)
        for (int64_t n = 0; n < samples_; n++)
            for (int64_t i = 0; i < top_height_; i++)
                for (int64_t j = 0; j < top_width_; j++)
                    for (int64_t d = 0; d < displacements_; d++) {
                        float sum = 0;
                        for (int64_t u = 0; u < kernel_; u++) {
                            const float* const a = at(0, n, i * stride_ + reach_rows_ + u, j * stride_ + reach_);
                            const float* const b = a - at(0, 0, 0, 0) + at(1, 0, 0, 0) + offset(d);
                            sum += subtract_ ? difference(a, b, run) : product(a, b, run);
                        }
                        outputs_[0]->data()[((n * displacements_ + d) * top_height_ + i) * top_width_ + j] =
                            scale * sum;
                    }
    }

    void backward(const dnnl::stream&) override {
        if (touched(Pass::backward).empty()) return;
        spread();
        for (size_t side = 0; side < 2; side++)
            if (input_gradient(side)) differentiate(side);
    }

private:
    // Returns the distance from a window of a to the displaced one of b, in their padded planes.
    int64_t offset(int64_t d) const { return (down_[d] * columns_ + across_[d]) * channels_; }

    const float* at(size_t side, int64_t n, int64_t row, int64_t column) const {
        const float* const all = address<float>(padded_[side]);
        return all + ((n * rows_ + row) * columns_ + column) * channels_;
    }

    // Copies both inputs to padded_: channels last, with zeros around them.
    void spread() const {
        for (size_t side = 0; side < 2; side++) {
            const float* const x = input(side)->data();
#pragma omp parallel for collapse(2) schedule(static)
            for (int64_t n = 0; n < samples_; n++)
                for (int64_t row = 0; row < rows_; row++) {
                    float* const to = const_cast<float*>(at(side, n, row, 0));
                    std::fill_n(to, columns_ * channels_, 0.f);
                    if (row < pad_rows_ || row >= pad_rows_ + height_) continue;
                    for (int64_t c = 0; c < channels_; c++) {
                        const float* const from = x + ((n * channels_ + c) * height_ + row - pad_rows_) * width_;
                        for (int64_t i = 0; i < width_; i++) to[(pad_ + i) * channels_ + c] = from[i];
                    }
                }
        }
    }

    // Computes the gradient of one input. Padded rows are done in parallel: a thread adds all that belongs to a row.
    void differentiate(size_t side) const {
        float* const all = address<float>(wanted_);
        const float scale = 1 / float(kernel_ * kernel_ * channels_);
        const int64_t run = kernel_ * channels_;
#pragma omp parallel for collapse(2) schedule(static)
        for (int64_t n = 0; n < samples_; n++)
            for (int64_t row = 0; row < rows_; row++) {
                std::fill_n(all + (n * rows_ + row) * columns_ * channels_, columns_ * channels_, 0.f);
                for (int64_t d = 0; d < displacements_; d++) {
                    const int64_t plane = columns_ * channels_;
                    const int64_t up = down_[d];
                    // The row of the first blob's windows of which this row, or the displaced one, is part.
                    const int64_t own = side == 0 ? row : row - up;
                    for (int64_t u = 0; u < kernel_; u++) {
                        const int64_t base = own - u - reach_rows_;
                        if (base < 0 || base % stride_ != 0 || base / stride_ >= top_height_) continue;
                        const int64_t i = base / stride_;
                        const float* const given =
                            outputs_[0]->diff->data() + ((n * displacements_ + d) * top_height_ + i) * top_width_;
                        for (int64_t j = 0; j < top_width_; j++) {
                            const float* const a = at(0, n, own, j * stride_ + reach_);
                            const float* const b = a - at(0, 0, 0, 0) + at(1, 0, 0, 0) + offset(d);
                            const int64_t place = (a - at(0, n, own, 0)) + (side == 1 ? offset(d) - up * plane : 0);
                            float* const into = all + (n * rows_ + row) * plane + place;
                            const float factor = scale * given[j];
                            if (!subtract_)
                                add_scaled(factor, side == 0 ? b : a, into, run);
                            else
                                add_signs(side == 0 ? factor : -factor, a, b, into, run);
                        }
                    }
                }
                if (row < pad_rows_ || row >= pad_rows_ + height_) continue;
                const float* const from = all + (n * rows_ + row) * columns_ * channels_ + pad_ * channels_;
                for (int64_t c = 0; c < channels_; c++) {
                    float* const to =
                        input(side)->diff->data() + ((n * channels_ + c) * height_ + row - pad_rows_) * width_;
                    for (int64_t i = 0; i < width_; i++) to[i] = from[i * channels_ + c];
                }
            }
    }

    bool subtract_;
    int64_t pad_rows_, pad_, reach_rows_, reach_, kernel_, stride_, samples_, channels_, height_, width_;
    int64_t rows_, columns_;  // of the padded planes
    int64_t displacements_, top_height_, top_width_;
    Dims down_, across_;
    memory padded_[2], wanted_;
};

static const RegisterOp<Correlation> registered("Correlation");

}  // namespace
}  // namespace engine
