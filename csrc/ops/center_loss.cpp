// Computes half the mean squared distance of features from the centers of their classes or, with `l1`, the mean of
// their L1 distances (Wen et al. 2016, "A Discriminative Feature Learning Approach for Deep Face Recognition"). A
// center's gradient is the paper's update, which does not depend on loss_weight: the sum of center - x (with `l1`, of
// its signs) over the n samples of its class, divided by 1 + n.
// inputs: x (M, ...), labels (M); outputs, further attributes: see row_loss.h; attributes: l1.
// params: centers (N, K).
#include <algorithm>
#include <cmath>

#include "kernels/vectorised.h"
#include "ops/common/labels.h"
#include "ops/common/row_loss.h"

namespace engine {
namespace {

ENGINE_VECTORISED double loss_of(const float* x, const float* center, bool l1, int64_t length) {
    double sum = 0;
    if (l1) {
#pragma omp simd reduction(+ : sum)
        for (int64_t k = 0; k < length; k++) sum += std::abs(double(x[k]) - double(center[k]));
        return sum;
    }
#pragma omp simd reduction(+ : sum)
    for (int64_t k = 0; k < length; k++) {
        const double gap = double(x[k]) - double(center[k]);
        sum += gap * gap;
    }
    return sum / 2;
}

class CenterLoss : public RowLoss {
public:
    explicit CenterLoss(OpSpec spec)
        : RowLoss(std::move(spec)),
          l1_(spec_.attributes.flag("l1")),
          classes_(param(0)->shape.at(0)),
          labels_(spec_, rows_, classes_),
          samples_of_(classes_) {
        plain_param(0);
    }

    void forward(const dnnl::stream&) override {
        labels_.read(input(1)->data());
        add_up([this](int64_t i) { return loss_of(input(0)->data() + i * row_, center(i), l1_, row_); });
    }

    void backward(const dnnl::stream&) override {
        if (param_gradient(0)) differentiate_centers();
        if (!input_gradient(0)) return;
        const float scale = gradient_scale();
#pragma omp parallel for
        for (int64_t i = 0; i < rows_; i++) {
            const float *const x = input(0)->data() + i * row_, *const center = this->center(i);
            float* const diff = input(0)->diff->data() + i * row_;
            for (int64_t k = 0; k < row_; k++) diff[k] = scale * slope(x[k] - center[k]);
        }
    }

private:
    const float* center(int64_t i) const { return param(0)->data() + labels_[i] * row_; }
    float slope(float gap) const { return l1_ ? float(gap > 0) - float(gap < 0) : gap; }

    void differentiate_centers() {
        const TensorPtr& diff = param(0)->diff;
        if (!diff->accumulate) std::fill_n(diff->data(), diff->count(), 0.f);
        std::fill(samples_of_.begin(), samples_of_.end(), 0);
        for (int64_t i = 0; i < rows_; i++) samples_of_[labels_[i]]++;
        for (int64_t i = 0; i < rows_; i++) {
            const float *const x = input(0)->data() + i * row_, *const center = this->center(i);
            const float factor = 1 / float(1 + samples_of_[labels_[i]]);
            float* const into = diff->data() + labels_[i] * row_;
#pragma omp simd
            for (int64_t k = 0; k < row_; k++) into[k] += factor * slope(center[k] - x[k]);
        }
    }

    bool l1_;
    int64_t classes_;
    Labels labels_;
    std::vector<int64_t> samples_of_;  // class -> how many samples of this batch it has
};

static const RegisterOp<CenterLoss> registered("CenterLoss");

}  // namespace
}  // namespace engine
