// Passes x on as it is, and reverses its gradient: it is multiplied by a number that goes from -lower_bound to
// -upper_bound until iteration max_iter (Ganin et al. 2016, arXiv 1505.07818, section 5.2.2).
// inputs: x, float32 or bf16, in any layout; outputs: x; attributes: lower_bound, upper_bound, alpha (how soon it
// rises), max_iter.
#include <algorithm>
#include <cmath>

#include "ops/common/elementwise.h"

namespace engine {
namespace {

class GradientScaler : public Op {
public:
    explicit GradientScaler(OpSpec spec)
        : Op(std::move(spec)),
          lower_bound_(spec_.attributes.real("lower_bound")),
          upper_bound_(spec_.attributes.real("upper_bound")),
          alpha_(spec_.attributes.real("alpha")),
          max_iter_(spec_.attributes.real("max_iter")) {
        touch(Pass::forward, input(0));
        output_view(0, input(0)->layout, input(0), false);
        if (!input_gradient(0) || !output_gradient(0)) return;
        const TensorPtr &given = outputs_[0]->diff, &wanted = input(0)->diff;
        given_.emplace_back(given->memory);
        wanted_ = wanted->memory;
        touch(Pass::backward, {given, wanted});
        may_overwrite(Pass::backward, given, wanted);
    }

    void forward(const dnnl::stream&) override {}

    void backward(const dnnl::stream&) override {
        if (given_.empty()) return;
        factor_[0] = float(-coefficient());
        weighted_sum(given_, factor_, wanted_);
    }

private:
    double coefficient() const {
        const double progress = std::min(1., double(spec_.counter->step) / max_iter_);
        return lower_bound_ + (upper_bound_ - lower_bound_) * (2 / (1 + std::exp(-alpha_ * progress)) - 1);
    }

    double lower_bound_, upper_bound_, alpha_, max_iter_;
    std::vector<Numbers> given_;  // the top's gradient; empty if there is none
    std::vector<float> factor_{0};
    Numbers wanted_;
};

static const RegisterOp<GradientScaler> registered("GradientScaler");

}  // namespace
}  // namespace engine
