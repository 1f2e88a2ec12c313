// The channels of every position scaled to length 1: x / sqrt(sum of x^2 + eps), or, L1, x / (sum of |x| + eps).
// inputs: x (N, C, ..., row-major); outputs: as x, and, where asked for, the lengths (N, 1, ...); attributes: l1, eps,
// of_length (the second top's gradient counts). What has length 0, without eps, stays 0.
#include <algorithm>
#include <cmath>

#include "kernels/add_row.h"
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

ENGINE_VECTORISED void divide(const float* x, const float* lengths, float* y, int64_t length) {
#pragma omp simd
    for (int64_t i = 0; i < length; i++) y[i] = x[i] / lengths[i];
}

// g is y's gradient, `along` the sum of g y over the channels minus what arrives at the length.
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
        along_ = scratch(plain_layout({outer_, inner_}));
        touch(Pass::backward, {outputs_[0], lengths_, input(0)->diff});
        if (output_gradient(0)) touch(Pass::backward, outputs_[0]->diff);
        if (of_length_) touch(Pass::backward, lengths_->diff);
    }

    void forward(const dnnl::stream&) override {
#pragma omp parallel for
        for (int64_t n = 0; n < outer_; n++) {
            float* const lengths = lengths_->data() + n * inner_;
            std::fill_n(lengths, inner_, 0.f);
            for (int64_t c = 0; c < channels_; c++) add_magnitudes(input(0)->data() + at(n, c), lengths, l1_, inner_);
            for (int64_t i = 0; i < inner_; i++) {
                lengths[i] = l1_ ? lengths[i] + eps_ : std::sqrt(lengths[i] + eps_);
                if (lengths[i] == 0) lengths[i] = 1;
            }
            for (int64_t c = 0; c < channels_; c++)
                divide(input(0)->data() + at(n, c), lengths, outputs_[0]->data() + at(n, c), inner_);
        }
    }

    void backward(const dnnl::stream&) override {
        if (touched(Pass::backward).empty()) return;
#pragma omp parallel for
        for (int64_t n = 0; n < outer_; n++) {
            const float* const lengths = lengths_->data() + n * inner_;
            float* const along = static_cast<float*>(along_.get_data_handle()) + n * inner_;
            std::fill_n(along, inner_, 0.f);
            if (output_gradient(0))
                for (int64_t c = 0; c < channels_; c++)
                    add_products(outputs_[0]->diff->data() + at(n, c), outputs_[0]->data() + at(n, c), along, inner_);
            if (of_length_) {
                // The length's own gradient is y (L1: the sign of x), which the division by it makes of this.
                const float* const given = lengths_->diff->data() + n * inner_;
                for (int64_t i = 0; i < inner_; i++) along[i] -= given[i] * lengths[i];
            }
            for (int64_t c = 0; c < channels_; c++) {
                float* const wanted = input(0)->diff->data() + at(n, c);
                const float* g = wanted;
                if (output_gradient(0))
                    g = outputs_[0]->diff->data() + at(n, c);
                else
                    std::fill_n(wanted, inner_, 0.f);
                differentiate(g, outputs_[0]->data() + at(n, c), along, lengths, l1_, wanted, inner_);
            }
        }
    }

private:
    int64_t at(int64_t n, int64_t c) const { return (n * channels_ + c) * inner_; }

    bool l1_, of_length_;
    float eps_;
    int64_t outer_, channels_, inner_;
    TensorPtr lengths_;
    memory along_;
};

static const RegisterOp<UnitNorm> registered("UnitNorm");

}  // namespace
}  // namespace engine
