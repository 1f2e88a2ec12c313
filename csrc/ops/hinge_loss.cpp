// Computes the hinge loss of one class against all others: the score of the label's class should be above 1, all others
// below -1. It is the mean over the samples of the sum over the classes of max(0, 1 - s x), or of its square, where s
// is 1 for the label's class and -1 for others.
// inputs: x (N, classes...), labels (N); outputs, further attributes: see row_loss.h; attributes: squared.
#include <algorithm>

#include "kernels/vectorised.h"
#include "ops/common/labels.h"
#include "ops/common/row_loss.h"

namespace engine {
namespace {

// Returns the sum of the losses of scores of other classes than the label's.
ENGINE_VECTORISED double losses(const float* x, int64_t length, bool squared) {
    double sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t c = 0; c < length; c++) {
        const float margin = 1 + x[c] < 0 ? 0 : 1 + x[c];
        sum += squared ? margin * margin : margin;
    }
    return sum;
}

ENGINE_VECTORISED void slopes(const float* x, int64_t length, bool squared, float scale, float* diff) {
#pragma omp simd
    for (int64_t c = 0; c < length; c++) {
        const float margin = 1 + x[c], slope = squared ? 2 * margin : 1;
        diff[c] = margin > 0 ? scale * slope : 0;
    }
}

class HingeLoss : public RowLoss {
public:
    explicit HingeLoss(OpSpec spec)
        : RowLoss(std::move(spec)), squared_(spec_.attributes.flag("squared")), labels_(spec_, rows_, row_) {
        if (input_gradient(0)) may_overwrite(Pass::backward, input(0), input(0)->diff);
    }

    void forward(const dnnl::stream&) override {
        labels_.read(input(1)->data());
        const float* const x = input(0)->data();
        add_up([=, this](int64_t i) {
            const float* const row = x + i * row_;
            const int64_t label = labels_[i];
            const float own = std::max(1 - row[label], 0.f);
            return losses(row, label, squared_) + losses(row + label + 1, row_ - label - 1, squared_) +
                   (squared_ ? own * own : own);
        });
    }

    void backward(const dnnl::stream&) override {
        const float* const x = input(0)->data();
        float* const diff = input(0)->diff->data();
        const float scale = gradient_scale();
#pragma omp parallel for
        for (int64_t i = 0; i < rows_; i++) {
            const int64_t label = i * row_ + labels_[i];
            const float own = 1 - x[label];  // read before diff is written, which may lie where x does
            slopes(x + i * row_, row_, squared_, scale, diff + i * row_);
            diff[label] = own > 0 ? -scale * (squared_ ? 2 * own : 1) : 0;
        }
    }

private:
    bool squared_;
    Labels labels_;
};

static const RegisterOp<HingeLoss> registered("HingeLoss");

}  // namespace
}  // namespace engine
