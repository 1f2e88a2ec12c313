// Computes a softmax along one axis, and of each label -sum_c H[label, c] log p_c: the negative log-likelihood of all
// classes, weighted by a row of the matrix H. If H is the identity, that is SoftmaxWithLoss.
// inputs: see softmax_loss_op.h; H (classes, classes), float32, row-major, unless the attribute `infogain` has it;
// outputs, further attributes: see softmax_loss_op.h; attributes: infogain (optional).
#include <algorithm>
#include <cmath>

#include "ops/common/softmax_loss_op.h"

namespace engine {
namespace {

class InfogainLoss : public SoftmaxLossOp {
public:
    explicit InfogainLoss(OpSpec spec) : SoftmaxLossOp(std::move(spec)), row_sums_(classes_) {
        if (spec_.inputs.size() == 3) {
            touch(Pass::forward, input(2));
            if (input_gradient(0)) touch(Pass::backward, input(2));
        } else {
            const std::vector<double> values = spec_.attributes.reals("infogain");
            matrix_.assign(values.begin(), values.end());
        }
    }

    void forward(const dnnl::stream& stream) override {
        for (int64_t c = 0; c < classes_; c++) {
            row_sums_[c] = 0;
            for (int64_t k = 0; k < classes_; k++) row_sums_[c] += gain(c)[k];
        }
        SoftmaxLossOp::forward(stream);
    }

    // The gradient of score c at a position is p_c sum_k H[label, k] - H[label, c].
    void backward(const dnnl::stream&) override {
        const float scale = gradient_scale();
#pragma omp parallel for
        for (int64_t i = 0; i < outer_ * inner_; i++) {
            const int64_t start = i / inner_ * classes_ * inner_ + i % inner_;
            const float* const p = probabilities_->data() + start;
            float* const diff = input(0)->diff->data() + start;
            const int32_t label = labels_[i];
            for (int64_t c = 0; c < classes_; c++) {
                const bool counts = label != Labels::ignored;
                diff[c * inner_] = counts ? scale * (p[c * inner_] * row_sums_[label] - gain(label)[c]) : 0;
            }
        }
    }

private:
    static constexpr float smallest = 1e-20f;  // as in Caffe, a smaller probability counts as this

    const float* gain(int64_t label) const {
        return (spec_.inputs.size() == 3 ? input(2)->data() : matrix_.data()) + label * classes_;
    }

    double strip_loss(int64_t n, int64_t begin, int64_t end) const override {
        const float* const p = probabilities_->data() + n * classes_ * inner_;
        double sum = 0;
        for (int64_t j = begin; j < end; j++) {
            const int32_t label = labels_[n * inner_ + j];
            if (label == Labels::ignored) continue;
            const float* const gain = this->gain(label);
            for (int64_t c = 0; c < classes_; c++)
                sum -= gain[c] * std::log(double(std::max(p[c * inner_ + j], smallest)));
        }
        return sum;
    }

    std::vector<float> matrix_;    // H, if the attribute has it
    std::vector<float> row_sums_;  // of H
};

static const RegisterOp<InfogainLoss> registered("InfogainLoss");

}  // namespace
}  // namespace engine
