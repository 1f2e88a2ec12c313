// One length for every sample, or for the channels of every position: y = x scale / sqrt(sum of x^2 + eps).
// inputs: x (N, C, ..., row-major); params: scale, one number or one for each channel; attributes: across_spatial, eps.
#include <algorithm>
#include <cmath>

#include "ops/common/onednn_util.h"

namespace engine {
namespace {

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
#pragma omp parallel for
        for (int64_t n = 0; n < outer_; n++) {
            float* const lengths = lengths_->data() + n * inner_;
            add_products(n, input(0)->data(), nullptr, lengths);
            for (int64_t s = 0; s < inner_; s++) lengths[s] = std::sqrt(lengths[s] + eps_);
            for (int64_t c = 0; c < channels_; c++) {
                const float* const x = input(0)->data() + (n * channels_ + c) * inner_;
                float* const y = outputs_[0]->data() + (n * channels_ + c) * inner_;
                for (int64_t s = 0; s < inner_; s++) y[s] = scale(c) * x[s] / lengths[s];
            }
        }
    }

    // With g the gradient of y, l the length and sums over what it is of:
    //   dscale = sum(g x / l), dx = scale g / l - x sum(scale g x) / l^3
    void backward(const dnnl::stream&) override {
        if (param_gradient(0)) differentiate_scale();
        if (!input_gradient(0)) return;
        const float* const given = outputs_[0]->diff->data();
#pragma omp parallel for
        for (int64_t n = 0; n < outer_; n++) {
            const float* const lengths = lengths_->data() + n * inner_;
            float* const products = sums() + n * inner_;
            add_products(n, input(0)->data(), given, products);
            for (int64_t s = 0; s < inner_; s++) products[s] /= lengths[s] * lengths[s] * lengths[s];
            for (int64_t c = 0; c < channels_; c++) {
                const int64_t begin = (n * channels_ + c) * inner_;
                const float *const x = input(0)->data() + begin, *const g = given + begin;
                float* const wanted = input(0)->diff->data() + begin;
                for (int64_t s = 0; s < inner_; s++) wanted[s] = scale(c) * g[s] / lengths[s] - x[s] * products[s];
            }
        }
    }

private:
    float scale(int64_t c) const { return param(0)->data()[shared_ ? 0 : c]; }
    float* sums() const { return static_cast<float*>(sums_.get_data_handle()); }

    // into[s] = sum over the channels of sample n of x^2, or of scale g x; over all positions, too, with
    // across_spatial.
    void add_products(int64_t n, const float* x, const float* g, float* into) const {
        std::fill_n(into, inner_, 0.f);
        for (int64_t c = 0; c < channels_; c++) {
            const int64_t begin = (n * channels_ + c) * inner_;
            for (int64_t s = 0; s < inner_; s++) into[s] += (g ? scale(c) * g[begin + s] : x[begin + s]) * x[begin + s];
        }
        if (!across_) return;
        double all = 0;
        for (int64_t s = 0; s < inner_; s++) all += into[s];
        std::fill_n(into, inner_, float(all));
    }

    void differentiate_scale() const {
        const float* const given = outputs_[0]->diff->data();
#pragma omp parallel for
        for (int64_t n = 0; n < outer_; n++) {
            const float* const lengths = lengths_->data() + n * inner_;
            for (int64_t c = 0; c < channels_; c++) {
                const int64_t begin = (n * channels_ + c) * inner_;
                double sum = 0;
                for (int64_t s = 0; s < inner_; s++) sum += given[begin + s] * input(0)->data()[begin + s] / lengths[s];
                sums()[n * channels_ + c] = float(sum);
            }
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
};

static const RegisterOp<Normalize> registered("Normalize");

}  // namespace
}  // namespace engine
