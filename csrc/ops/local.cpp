// Computes a convolution whose weights differ from window to window.
// inputs: x unrolled (N, K, P), K values of each of P windows, float32, row-major; outputs: (N, O, P); attributes:
// bias.
// params: weights (O, 1, K, P), bias (1, 1, O, P).
#include <algorithm>

#include "kernels/add_row.h"
#include "ops/common/onednn_util.h"

namespace engine {
namespace {

class Local : public Op {
public:
    explicit Local(OpSpec spec)
        : Op(std::move(spec)),
          bias_(spec_.attributes.flag("bias")),
          samples_(input(0)->shape.at(0)),
          values_(input(0)->shape.at(1)),
          windows_(input(0)->shape.at(2)),
          outputs_each_(spec_.output_shapes.at(0).at(1)) {
        for (size_t i = 0; i < spec_.params.size(); i++) plain_param(i);
        output(0, plain_layout(spec_.output_shapes[0]));
        touch(Pass::forward, {input(0), outputs_[0]});
        if (!needs_backward() || !output_gradient(0)) return;
        touch(Pass::backward, {input(0), outputs_[0]->diff});
        if (input_gradient(0)) touch(Pass::backward, input(0)->diff);
    }

    void forward(const dnnl::stream&) override {
#pragma omp parallel for collapse(2) schedule(static)
        for (int64_t n = 0; n < samples_; n++)
            for (int64_t o = 0; o < outputs_each_; o++) {
                float* const y = outputs_[0]->data() + (n * outputs_each_ + o) * windows_;
                if (bias_)
                    std::copy_n(param(1)->data() + o * windows_, windows_, y);
                else
                    std::fill_n(y, windows_, 0.f);
                for (int64_t k = 0; k < values_; k++) add_products(x(n, k), weights(o, k), y, windows_);
            }
    }

    void backward(const dnnl::stream&) override {
        if (touched(Pass::backward).empty()) return;
        const float* const given = outputs_[0]->diff->data();
        if (input_gradient(0)) {
#pragma omp parallel for collapse(2) schedule(static)
            for (int64_t n = 0; n < samples_; n++)
                for (int64_t k = 0; k < values_; k++) {
                    float* const wanted = input(0)->diff->data() + (n * values_ + k) * windows_;
                    std::fill_n(wanted, windows_, 0.f);
                    for (int64_t o = 0; o < outputs_each_; o++)
                        add_products(given + (n * outputs_each_ + o) * windows_, weights(o, k), wanted, windows_);
                }
        }
        if (param_gradient(0)) {
            const TensorPtr& diff = param(0)->diff;
#pragma omp parallel for collapse(2) schedule(static)
            for (int64_t o = 0; o < outputs_each_; o++)
                for (int64_t k = 0; k < values_; k++) {
                    float* const wanted = diff->data() + (o * values_ + k) * windows_;
                    if (!diff->accumulate) std::fill_n(wanted, windows_, 0.f);
                    for (int64_t n = 0; n < samples_; n++)
                        add_products(given + (n * outputs_each_ + o) * windows_, x(n, k), wanted, windows_);
                }
        }
        if (!bias_ || !param_gradient(1)) return;
        const TensorPtr& diff = param(1)->diff;
        const int64_t size = outputs_each_ * windows_;
        if (!diff->accumulate) std::fill_n(diff->data(), size, 0.f);
        for (int64_t n = 0; n < samples_; n++)
            for (int64_t i = 0; i < size; i++) diff->data()[i] += given[n * size + i];
    }

private:
    const float* x(int64_t n, int64_t k) const { return input(0)->data() + (n * values_ + k) * windows_; }
    const float* weights(int64_t o, int64_t k) const { return param(0)->data() + (o * values_ + k) * windows_; }

    bool bias_;
    int64_t samples_, values_, windows_, outputs_each_;
};

static const RegisterOp<Local> registered("Local");

}  // namespace
}  // namespace engine
