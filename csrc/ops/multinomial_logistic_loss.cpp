// Computes the mean negative logarithm of the probability of each label's class.
// inputs: probabilities (N, classes...), labels (N); outputs, attributes: see row_loss.h.
#include <algorithm>
#include <cmath>

#include "ops/common/labels.h"
#include "ops/common/row_loss.h"

namespace engine {
namespace {

class MultinomialLogisticLoss : public RowLoss {
public:
    explicit MultinomialLogisticLoss(OpSpec spec) : RowLoss(std::move(spec)), labels_(spec_, rows_, row_) {}

    void forward(const dnnl::stream&) override {
        labels_.read(input(1)->data());
        add_up([this](int64_t i) { return -std::log(double(probability(i))); });
    }

    void backward(const dnnl::stream&) override {
        float* const diff = input(0)->diff->data();
        const float scale = gradient_scale();
#pragma omp parallel for
        for (int64_t i = 0; i < rows_; i++) {
            std::fill_n(diff + i * row_, row_, 0.f);
            diff[i * row_ + labels_[i]] = -scale / probability(i);
        }
    }

private:
    static constexpr float smallest = 1e-20f;  // as in Caffe, a smaller probability counts as this

    float probability(int64_t i) const { return std::max(input(0)->data()[i * row_ + labels_[i]], smallest); }

    Labels labels_;
};

static const RegisterOp<MultinomialLogisticLoss> registered("MultinomialLogisticLoss");

}  // namespace
}  // namespace engine
