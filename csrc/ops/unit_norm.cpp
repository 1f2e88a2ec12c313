// Scales the channels of every position to length 1: x / sqrt(sum of x^2 + eps), or with `l1` x / (sum of |x| + eps). A
// position of length 0 stays 0.
// inputs: x (N, C, ...), float32, row-major; outputs: as x, optionally the lengths (N, 1, ...); attributes: l1, eps,
// of_length (the gradient of the second top counts).
#include <algorithm>
#include <cmath>

#include "kernels/add_row.h"
#include "kernels/chunks.h"
#include "kernels/vectorised.h"
#include "ops/common/onednn_util.h"

namespace engine {
namespace {

ENGINE_VECTORISED void add_magnitudes(const float* x, float* sums, bool l1, int64_t length) {
    if (l1)
#pragma omp simd
        for (int64_t i = 0; i < length; i++) sums[i] += std::abs(x[i]);
    else
#pragma omp simd
        for (int64_t i = 0; i < length; i++) sums[i] += x[i] * x[i];
}

ENGINE_VECTORISED void to_lengths(float* sums, bool l1, float eps, int64_t length) {
#pragma omp simd
    for (int64_t i = 0; i < length; i++) {
        const float value = l1 ? sums[i] + eps : std::sqrt(sums[i] + eps);
        sums[i] = value == 0 ? 1 : value;
    }
}

ENGINE_VECTORISED void divide(const float* x, const float* lengths, float* y, int64_t length) {
#pragma omp simd
    for (int64_t i = 0; i < length; i++) y[i] = x[i] / lengths[i];
}

// g: the gradient of y; along: the sum of g y over the channels, minus the gradient of the length times the length.
ENGINE_VECTORISED void differentiate(const float* g, const float* y, const float* along, const float* lengths, bool l1,
                                     float* wanted, int64_t length) {
    if (l1)
#pragma omp simd
        for (int64_t i = 0; i < length; i++) {
            const float sign = float(y[i] > 0) - float(y[i] < 0);
            wanted[i] = (g[i] - sign * along[i]) / lengths[i];
        }
    else
#pragma omp simd
        for (int64_t i = 0; i < length; i++) wanted[i] = (g[i] - y[i] * along[i]) / lengths[i];
}

class UnitNorm : public Op {
public:
    explicit UnitNorm(OpSpec spec)
        : Op(std::move(spec)),
          l1_(spec_.attributes.flag("l1")),
          eps_(float(spec_.attributes.real("eps"))),
          outer_(input(0)->shape.at(0)),
          channels_(input(0)->shape.at(1)),
          inner_(input(0)->count() / (outer_ * channels_)) {
        output(0, input(0)->layout);
        lengths_ = outputs_.size() > 1 ? output(1, plain_layout(spec_.output_shapes[1]))
                                       : workspace("lengths", plain_layout({outer_, inner_}));
        touch(Pass::forward, {input(0), outputs_[0], lengths_});
        of_length_ = outputs_.size() > 1 && output_gradient(1) && spec_.attributes.flag("of_length");
        if (!input_gradient(0) || !(output_gradient(0) || of_length_)) return;
        touch(Pass::backward, {outputs_[0], lengths_, input(0)->diff});
        if (output_gradient(0)) touch(Pass::backward, outputs_[0]->diff);
        if (of_length_) touch(Pass::backward, lengths_->diff);
    }

    void forward(const dnnl::stream&) override {
        strips().each([this](int64_t, int64_t n, int64_t begin, int64_t width) {
            const float* const x = input(0)->data() + n * channels_ * inner_ + begin;
            float* const y = outputs_[0]->data() + n * channels_ * inner_ + begin;
            float* const lengths = lengths_->data() + n * inner_ + begin;
            std::fill_n(lengths, width, 0.f);
            for (int64_t c = 0; c < channels_; c++) add_magnitudes(x + c * inner_, lengths, l1_, width);
            to_lengths(lengths, l1_, eps_, width);
            for (int64_t c = 0; c < channels_; c++) divide(x + c * inner_, lengths, y + c * inner_, width);
        });
    }

    void backward(const dnnl::stream&) override {
        if (touched(Pass::backward).empty()) return;
        strips().each([this](int64_t, int64_t n, int64_t begin, int64_t width) {
            const int64_t first = n * channels_ * inner_ + begin;
            const float* const y = outputs_[0]->data() + first;
            const float* const given = output_gradient(0) ? outputs_[0]->diff->data() + first : nullptr;
            const float* const lengths = lengths_->data() + n * inner_ + begin;
            float* const wanted = input(0)->diff->data() + first;
            alignas(64) float along[Strips::widest] = {};
            if (given)
                for (int64_t c = 0; c < channels_; c++) add_products(given + c * inner_, y + c * inner_, along, width);
            if (of_length_) {
                // The derivative of the length is y (L1: the sign of x): differentiate() divides by the length again.
                const float* const of_lengths = lengths_->diff->data() + n * inner_ + begin;
                for (int64_t i = 0; i < width; i++) along[i] -= of_lengths[i] * lengths[i];
            }
            for (int64_t c = 0; c < channels_; c++) {
                float* const into = wanted + c * inner_;
                if (!given) std::fill_n(into, width, 0.f);
                differentiate(given ? given + c * inner_ : into, y + c * inner_, along, lengths, l1_, into, width);
            }
        });
    }

private:
    Strips strips() const { return {outer_, channels_, inner_}; }

    bool l1_, of_length_;
    float eps_;
    int64_t outer_, channels_, inner_;
    TensorPtr lengths_;
};

static const RegisterOp<UnitNorm> registered("UnitNorm");

}  // namespace
}  // namespace engine
