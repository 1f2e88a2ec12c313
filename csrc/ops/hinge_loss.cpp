// One against all: every score should be below -1, that of the label's class above 1; the sum over classes of
// max(0, 1 - s x), or of its square, where s is 1 for the label's class and -1 for others.
// inputs: x (N, classes...), labels (N); attributes: loss_weight, squared.
#include <algorithm>

#include "ops/common/labels.h"
#include "ops/common/row_loss.h"

namespace engine {
namespace {

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
            double sum = 0;
            for (int64_t c = 0; c < row_; c++) {
                const double margin = std::max(1 - side(i, c) * x[i * row_ + c], 0.f);
                sum += squared_ ? margin * margin : margin;
            }
            return sum;
        });
    }

    void backward(const dnnl::stream&) override {
        const float* const x = input(0)->data();
        float* const diff = input(0)->diff->data();
        const float scale = gradient_scale();
#pragma omp parallel for
        for (int64_t i = 0; i < rows_; i++) {
            for (int64_t c = 0; c < row_; c++) {
                const float margin = 1 - side(i, c) * x[i * row_ + c];
                const float slope = squared_ ? 2 * margin : 1;
                diff[i * row_ + c] = margin > 0 ? -scale * side(i, c) * slope : 0;
            }
        }
    }

private:
    float side(int64_t i, int64_t c) const { return labels_[i] == c ? 1.f : -1.f; }

    bool squared_;
    Labels labels_;
};

static const RegisterOp<HingeLoss> registered("HingeLoss");

}  // namespace
}  // namespace engine
