// Computes the length of each position's channels, sqrt(sum of x^2).
// inputs: x (N, C, ...), float32, row-major; outputs: (N, 1, ...).
#include <algorithm>
#include <cmath>

#include "kernels/chunks.h"
#include "kernels/vectorised.h"
#include "ops/common/onednn_util.h"

namespace engine {
namespace {

ENGINE_VECTORISED void add_squares(const float* x, float* sums, int64_t length) {
#pragma omp simd
    for (int64_t i = 0; i < length; i++) sums[i] += x[i] * x[i];
}

ENGINE_VECTORISED void roots(float* y, int64_t length) {
#pragma omp simd
    for (int64_t i = 0; i < length; i++) y[i] = std::sqrt(y[i]);
}

ENGINE_VECTORISED void differentiate(const float* given, const float* x, const float* y, float* wanted,
                                     int64_t length) {
#pragma omp simd
    for (int64_t i = 0; i < length; i++) wanted[i] = given[i] * x[i] / (y[i] + 1e-9f);
}

class ChannelNorm : public Op {
public:
    explicit ChannelNorm(OpSpec spec)
        : Op(std::move(spec)),
          samples_(input(0)->shape.at(0)),
          channels_(input(0)->shape.at(1)),
          inner_(input(0)->count() / (samples_ * channels_)) {
        output(0, plain_layout(spec_.output_shapes[0]));
        touch(Pass::forward, {input(0), outputs_[0]});
        if (!input_gradient(0) || !output_gradient(0)) return;
        touch(Pass::backward, {input(0), outputs_[0], outputs_[0]->diff, input(0)->diff});
    }

    void forward(const dnnl::stream&) override {
        const Strips strips{samples_, channels_, inner_};
        strips.each([this](int64_t, int64_t n, int64_t begin, int64_t width) {
            float* const y = outputs_[0]->data() + n * inner_ + begin;
            std::fill_n(y, width, 0.f);
            for (int64_t c = 0; c < channels_; c++) add_squares(x(n, c) + begin, y, width);
            roots(y, width);
        });
    }

    void backward(const dnnl::stream&) override {
        if (touched(Pass::backward).empty()) return;
#pragma omp parallel for collapse(2) schedule(static)
        for (int64_t n = 0; n < samples_; n++)
            for (int64_t c = 0; c < channels_; c++)
                differentiate(outputs_[0]->diff->data() + n * inner_, x(n, c), outputs_[0]->data() + n * inner_,
                              input(0)->diff->data() + (n * channels_ + c) * inner_, inner_);
    }

private:
    const float* x(int64_t n, int64_t c) const { return input(0)->data() + (n * channels_ + c) * inner_; }

    int64_t samples_, channels_, inner_;
};

static const RegisterOp<ChannelNorm> registered("ChannelNorm");

}  // namespace
}  // namespace engine
