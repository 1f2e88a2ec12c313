// One length for every sample, or for the channels of every position: y = x scale / sqrt(sum of x^2 + eps).
// inputs: x (N, C, ..., row-major); params: scale, one number or one for each channel; attributes: across_spatial, eps.
#include <algorithm>
#include <cmath>

#include "kernels/chunks.h"
#include "kernels/double_sums.h"
#include "kernels/vectorised.h"
#include "ops/common/onednn_util.h"

namespace engine {
namespace {

ENGINE_VECTORISED void add_products(float factor, const float* a, const float* b, float* sums, int64_t length) {
#pragma omp simd
    for (int64_t s = 0; s < length; s++) sums[s] += factor * a[s] * b[s];
}

// By the lengths.
ENGINE_VECTORISED double sum_of_products(const float* a, const float* b, const float* lengths, int64_t length) {
    double sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t s = 0; s < length; s++) sum += a[s] * b[s] / lengths[s];
    return sum;
}

ENGINE_VECTORISED void roots(float* squares, float eps, int64_t length) {
#pragma omp simd
    for (int64_t s = 0; s < length; s++) squares[s] = std::sqrt(squares[s] + eps);
}

ENGINE_VECTORISED void normalize(float scale, const float* x, const float* lengths, float* y, int64_t length) {
#pragma omp simd
    for (int64_t s = 0; s < length; s++) y[s] = scale * x[s] / lengths[s];
}

// `products` are the sums of scale g x, by the third power of the lengths.
ENGINE_VECTORISED void differentiate(float scale, const float* g, const float* x, const float* lengths,
                                     const float* products, float* wanted, int64_t length) {
#pragma omp simd
    for (int64_t s = 0; s < length; s++) wanted[s] = scale * g[s] / lengths[s] - x[s] * products[s];
}

class Normalize : public Op {
public:
    explicit Normalize(OpSpec spec)
        : Op(std::move(spec)),
          across_(spec_.attributes.flag("across_spatial")),
          eps_(float(spec_.attributes.real("eps"))),
          outer_(input(0)->shape.at(0)),
          channels_(input(0)->shape.at(1)),
          inner_(input(0)->count() / (outer_ * channels_)) {
        plain_param(0);
        shared_ = param(0)->count() == 1;
        if (across_) sums_of_strips_.resize(size_t(strips().count()));
        lengths_ = workspace("lengths", plain_layout({outer_, inner_}));
        output(0, input(0)->layout);
        touch(Pass::forward, {input(0), outputs_[0], lengths_});
        if (!output_gradient(0) || !needs_backward()) return;
        sums_ = scratch(plain_layout({outer_, std::max(inner_, channels_)}));
        touch(Pass::backward, {input(0), outputs_[0]->diff, lengths_});
        if (!input_gradient(0)) return;
        touch(Pass::backward, input(0)->diff);
        may_overwrite(Pass::backward, outputs_[0]->diff, input(0)->diff);
    }

    void forward(const dnnl::stream&) override {
        with_products(nullptr, lengths_->data(), [this](int64_t n, int64_t begin, int64_t width) {
            float* const lengths = lengths_->data() + n * inner_ + begin;
            roots(lengths, eps_, width);
            for (int64_t c = 0; c < channels_; c++) {
                const int64_t at = (n * channels_ + c) * inner_ + begin;
                normalize(scale(c), input(0)->data() + at, lengths, outputs_[0]->data() + at, width);
            }
        });
    }

    // With g the gradient of y, l the length and sums over what it is of:
    //   dscale = sum(g x / l), dx = scale g / l - x sum(scale g x) / l^3
    void backward(const dnnl::stream&) override {
        if (param_gradient(0)) differentiate_scale();
        if (!input_gradient(0)) return;
        const float* const given = outputs_[0]->diff->data();
        with_products(given, sums(), [&](int64_t n, int64_t begin, int64_t width) {
            const float* const lengths = lengths_->data() + n * inner_ + begin;
            float* const products = sums() + n * inner_ + begin;
            for (int64_t s = 0; s < width; s++) products[s] /= lengths[s] * lengths[s] * lengths[s];
            for (int64_t c = 0; c < channels_; c++) {
                const int64_t at = (n * channels_ + c) * inner_ + begin;
                differentiate(scale(c), given + at, input(0)->data() + at, lengths, products,
                              input(0)->diff->data() + at, width);
            }
        });
    }

private:
    float scale(int64_t c) const { return param(0)->data()[shared_ ? 0 : c]; }
    float* sums() const { return address<float>(sums_); }

    Strips strips() const { return {outer_, channels_, inner_}; }

    // into[s] = sum over the channels of x^2, or of scale g x; over all positions of a sample, too, with
    // across_spatial. Then use(sample, first position, positions) of each strip.
    template <typename Use>
    void with_products(const float* g, float* into, const Use& use) {
        strips().each([&](int64_t strip, int64_t n, int64_t begin, int64_t width) {
            float* const products = into + n * inner_ + begin;
            std::fill_n(products, width, 0.f);
            for (int64_t c = 0; c < channels_; c++) {
                const int64_t at = (n * channels_ + c) * inner_ + begin;
                const float* const x = input(0)->data() + at;
                add_products(g ? scale(c) : 1, g ? g + at : x, x, products, width);
            }
            if (!across_) return use(n, begin, width);
            sums_of_strips_[strip] = sum_of(products, width);
        });
        if (!across_) return;
        const int64_t each = strips().of_sample();
        for (int64_t n = 0; n < outer_; n++)  // a sample's first gets the sum of them all
            for (int64_t i = 1; i < each; i++) sums_of_strips_[n * each] += sums_of_strips_[n * each + i];
        strips().each([&](int64_t, int64_t n, int64_t begin, int64_t width) {
            std::fill_n(into + n * inner_ + begin, width, float(sums_of_strips_[n * each]));
            use(n, begin, width);
        });
    }

    void differentiate_scale() const {
        const float *const x = input(0)->data(), *const given = outputs_[0]->diff->data();
#pragma omp parallel for schedule(static)
        for (int64_t plane = 0; plane < outer_ * channels_; plane++) {
            const float* const lengths = lengths_->data() + plane / channels_ * inner_;
            sums()[plane] = float(sum_of_products(given + plane * inner_, x + plane * inner_, lengths, inner_));
        }
        const TensorPtr& diff = param(0)->diff;
        const int64_t count = diff->count();
        if (!diff->accumulate) std::fill_n(diff->data(), count, 0.f);
        for (int64_t c = 0; c < channels_; c++) {
            double sum = 0;
            for (int64_t n = 0; n < outer_; n++) sum += sums()[n * channels_ + c];
            diff->data()[shared_ ? 0 : c] += float(sum);
        }
    }

    bool across_, shared_;
    float eps_;
    int64_t outer_, channels_, inner_;
    TensorPtr lengths_;  // for each position
    memory sums_;
    std::vector<double> sums_of_strips_;
};

static const RegisterOp<Normalize> registered("Normalize");

}  // namespace
}  // namespace engine
