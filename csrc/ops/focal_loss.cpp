// Computes the focal loss, a cross-entropy of a softmax in which labels that are right already count less: of a label's
// probability p, -alpha (1 - p)^gamma log p (Lin et al. 2017, arXiv 1708.02002) or, with `add`, -(alpha + p)^gamma log
// p.
// inputs, outputs, further attributes: see softmax_loss_op.h; attributes: alpha, gamma, add.
#include <algorithm>
#include <cfloat>
#include <cmath>

#include "ops/common/softmax_loss_op.h"

namespace engine {
namespace {

class FocalLoss : public SoftmaxLossOp {
public:
    explicit FocalLoss(OpSpec spec)
        : SoftmaxLossOp(std::move(spec)),
          alpha_(spec_.attributes.real("alpha")),
          gamma_(spec_.attributes.real("gamma")),
          add_(spec_.attributes.flag("add")) {}

    // With f(p) the loss, the gradient of a score is f' p (1 - p) for the label's own class, -f' p p_c for another
    // class c.
    void backward(const dnnl::stream&) override {
        const double scale = gradient_scale();
        strips().each([&](int64_t, int64_t n, int64_t begin, int64_t width) {
            const int64_t at = n * classes_ * inner_ + begin;
            const float* const all = probabilities_->data() + at;
            float* const diff = input(0)->diff->data() + at;
            double factors[Strips::widest];
            for (int64_t j = 0; j < width; j++) {
                const int32_t label = labels_[n * inner_ + begin + j];
                factors[j] = label == Labels::ignored ? 0 : slope(all[label * inner_ + j]) * scale;
            }
            for (int64_t c = 0; c < classes_; c++)
                for (int64_t j = 0; j < width; j++) {
                    const double p = all[c * inner_ + j];
                    const bool own = labels_[n * inner_ + begin + j] == c;
                    diff[c * inner_ + j] = float(factors[j] * (double(own) - p));
                }
        });
    }

private:
    double strip_loss(int64_t n, int64_t begin, int64_t end) const override {
        const float* const all = probabilities_->data() + n * classes_ * inner_;
        double sum = 0;
        for (int64_t j = begin; j < end; j++) {
            const int32_t label = labels_[n * inner_ + j];
            if (label == Labels::ignored) continue;
            const double p = all[label * inner_ + j];
            sum -= weight(p) * std::log(std::max(p, double(FLT_MIN)));
        }
        return sum;
    }

    double weight(double p) const { return add_ ? std::pow(alpha_ + p, gamma_) : alpha_ * std::pow(1 - p, gamma_); }

    // Returns p times the derivative of the loss with respect to p.
    double slope(double p) const {
        const double log = std::log(std::max(p, double(FLT_MIN)));
        if (add_) return -gamma_ * std::pow(alpha_ + p, gamma_ - 1) * p * log - weight(p);
        const double steep = gamma_ == 0 || p >= 1 ? 0 : gamma_ * alpha_ * std::pow(1 - p, gamma_ - 1);
        return steep * p * log - weight(p);
    }

    double alpha_, gamma_;
    bool add_;
};

static const RegisterOp<FocalLoss> registered("FocalLoss");

}  // namespace
}  // namespace engine
