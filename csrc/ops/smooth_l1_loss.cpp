// The absolute difference, rounded off near 0: the sum of outside f(inside (a - b)), where f(d) is s^2 d^2 / 2 for
// |d| < 1 / s^2, else |d| - 1 / (2 s^2) (Girshick 2015). Without rounding (s = 0 stands for that) it is L1Loss.
// inputs: a, b, and, where given, inside weights, then outside weights, all (N, ...) of the same count; outputs: loss
// (), and, where asked for, the sum over the channels (axis 1) at each position; attributes: loss_weight, sigma,
// normalizer (what the sum is divided by; N by default).
#include <cmath>

#include "ops/common/row_loss.h"

namespace engine {
namespace {

class SmoothL1Loss : public RowLoss {
public:
    explicit SmoothL1Loss(OpSpec spec) : RowLoss(std::move(spec)) {
        const double sigma = spec_.attributes.real("sigma", 0);
        square_ = float(sigma * sigma);
        bend_ = sigma > 0 ? 1 / square_ : 0;
        if (outputs_.size() > 1) touch(Pass::forward, output(1, plain_layout(spec_.output_shapes[1])));
    }

    void forward(const dnnl::stream&) override {
        add_up([this](int64_t i) {
            double sum = 0;
            for (int64_t k = i * row_; k < (i + 1) * row_; k++) sum += value(k);
            return sum;
        });
        if (outputs_.size() > 1) sum_channels();
    }

    void backward(const dnnl::stream&) override {
        const int64_t count = rows_ * row_;
        for (size_t side = 0; side < 2; side++) {
            if (!input_gradient(side)) continue;
            const float scale = side == 0 ? gradient_scale() : -gradient_scale();
            float* const diff = input(side)->diff->data();
#pragma omp parallel for
            for (int64_t k = 0; k < count; k++) diff[k] = scale * weight(2, k) * weight(3, k) * slope(difference(k));
        }
    }

private:
    void sum_channels() const {
        const int64_t positions = outputs_[1]->count(), inner = positions / rows_;
#pragma omp parallel for
        for (int64_t at = 0; at < positions; at++) {
            double sum = 0;
            for (int64_t k = at % inner; k < row_; k += inner) sum += value(at / inner * row_ + k);
            outputs_[1]->data()[at] = float(sum);
        }
    }

    float value(int64_t k) const {
        const float d = difference(k), far = std::abs(d);
        return weight(3, k) * (far < bend_ ? square_ * d * d / 2 : far - bend_ / 2);
    }
    float weight(size_t i, int64_t k) const { return i < spec_.inputs.size() ? spec_.inputs[i]->data()[k] : 1; }
    float difference(int64_t k) const { return weight(2, k) * (input(0)->data()[k] - input(1)->data()[k]); }
    float slope(float d) const { return std::abs(d) < bend_ ? square_ * d : float((d > 0) - (d < 0)); }

    float square_, bend_;  // s^2, and where the straight part begins
};

static const RegisterOp<SmoothL1Loss> registered("SmoothL1Loss"), registered_l1("L1Loss");

}  // namespace
}  // namespace engine
