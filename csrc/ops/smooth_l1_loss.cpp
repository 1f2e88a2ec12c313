// Computes the smooth L1 loss (Girshick 2015), the sum of outside f(inside (a - b)), where f(d) is s^2 d^2 / 2 for |d|
// < 1 / s^2, else |d| - 1 / (2 s^2). With s = 0, f(d) is |d|, as for L1Loss.
// inputs: a (N, ...), b, optionally inside weights, then outside weights, of as many elements each; outputs: loss (),
// optionally the sum over the channels (axis 1) at each position; attributes: sigma (s); for others see row_loss.h.
#include <cmath>

#include "kernels/double_sums.h"
#include "kernels/vectorised.h"
#include "ops/common/row_loss.h"

namespace engine {
namespace {

// Weights that are nullptr stand for 1.
struct Inputs {
    const float *a, *b, *inside, *outside;

    float inner(int64_t k) const { return inside ? inside[k] : 1; }
    float outer(int64_t k) const { return outside ? outside[k] : 1; }
    float difference(int64_t k) const { return inner(k) * (a[k] - b[k]); }
};

// The function f. square: s^2; bend: the |d| at which its straight part begins.
struct Curve {
    float square, bend;

    float value(float d) const {
        const float far = std::abs(d);
        return far < bend ? square * d * d / 2 : far - bend / 2;
    }
    float slope(float d) const { return std::abs(d) < bend ? square * d : float(d > 0) - float(d < 0); }
};

// Returns the sum of the values of a strip. It has two loops, because GCC does not vectorise one in which weights may
// be missing and doubles are summed.
ENGINE_VECTORISED double sum_of_values(const Inputs in, const Curve curve, int64_t begin, int64_t end) {
    float values[Strips::widest];
#pragma omp simd
    for (int64_t k = begin; k < end; k++) values[k - begin] = in.outer(k) * curve.value(in.difference(k));
    return sum_of(values, end - begin);
}

ENGINE_VECTORISED void differentiate(const Inputs in, const Curve curve, float scale, float* diff, int64_t begin,
                                     int64_t end) {
#pragma omp simd
    for (int64_t k = begin; k < end; k++) diff[k] = scale * in.inner(k) * in.outer(k) * curve.slope(in.difference(k));
}

class SmoothL1Loss : public RowLoss {
public:
    explicit SmoothL1Loss(OpSpec spec) : RowLoss(std::move(spec)) {
        const double sigma = spec_.attributes.real("sigma", 0);
        curve_.square = float(sigma * sigma);
        curve_.bend = sigma > 0 ? 1 / curve_.square : 0;
        if (outputs_.size() > 1) touch(Pass::forward, output(1, plain_layout(spec_.output_shapes[1])));
    }

    void forward(const dnnl::stream&) override {
        const Inputs in = inputs();
        add_up_elements([&](int64_t begin, int64_t end) { return sum_of_values(in, curve_, begin, end); });
        if (outputs_.size() > 1) sum_channels(in, outputs_[1]->data());
    }

    void backward(const dnnl::stream&) override {
        const Inputs in = inputs();
        for (size_t side = 0; side < 2; side++) {
            if (!input_gradient(side)) continue;
            const float scale = side == 0 ? gradient_scale() : -gradient_scale();
            float* const diff = input(side)->diff->data();
            in_chunks(rows_ * row_, [&](int64_t begin, int64_t length) {
                differentiate(in, curve_, scale, diff, begin, begin + length);
            });
        }
    }

private:
    Inputs inputs() const {
        const auto data = [this](size_t i) { return i < spec_.inputs.size() ? input(i)->data() : nullptr; };
        return {data(0), data(1), data(2), data(3)};
    }

    void sum_channels(const Inputs& in, float* sums) const {
        const int64_t positions = outputs_[1]->count(), inner = positions / rows_;
#pragma omp parallel for
        for (int64_t at = 0; at < positions; at++) {
            double sum = 0;
            for (int64_t k = at / inner * row_ + at % inner; k < (at / inner + 1) * row_; k += inner)
                sum += in.outer(k) * curve_.value(in.difference(k));
            sums[at] = float(sum);
        }
    }

    Curve curve_;
};

static const RegisterOp<SmoothL1Loss> registered("SmoothL1Loss"), registered_l1("L1Loss");

}  // namespace
}  // namespace engine
