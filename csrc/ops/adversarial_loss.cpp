// Computes a loss of a discriminator's scores s, whose samples are to be called real (r = 1) or generated (r = 0): the
// sum over the scores of log(1 + exp(s)) - r s, (s - r)^2 / 2 or (1 - 2 r) s, divided by normalizer.
// inputs: scores (N, ...), optionally r (one value; 1 without it); outputs, further attributes: see row_loss.h;
// attributes: kind (a number of Kind).
#include <algorithm>
#include <cmath>

#include "ops/common/row_loss.h"

namespace engine {
namespace {

class AdversarialLoss : public RowLoss {
public:
    explicit AdversarialLoss(OpSpec spec) : RowLoss(std::move(spec)), kind_(Kind(spec_.attributes.integer("kind"))) {}

    void forward(const dnnl::stream&) override {
        const float* const scores = input(0)->data();
        const double r = real();
        add_up_elements([=, this](int64_t begin, int64_t end) {
            double sum = 0;
            for (int64_t k = begin; k < end; k++) sum += loss(scores[k], r);
            return sum;
        });
    }

    void backward(const dnnl::stream&) override {
        if (!input_gradient(0)) return;
        const float* const scores = input(0)->data();
        float* const diff = input(0)->diff->data();
        const float r = real(), scale = gradient_scale();
        const int64_t count = rows_ * row_;
#pragma omp parallel for
        for (int64_t k = 0; k < count; k++) diff[k] = scale * slope(scores[k], r);
    }

private:
    enum Kind { NON_SATURATING, LEAST_SQUARES, WASSERSTEIN };  // as AdversarialLossParameter.Loss

    float real() const { return spec_.inputs.size() > 1 ? input(1)->data()[0] : 1; }

    double loss(double s, double r) const {
        if (kind_ == NON_SATURATING) return std::max(s, 0.) + std::log1p(std::exp(-std::abs(s))) - r * s;
        if (kind_ == LEAST_SQUARES) return (s - r) * (s - r) / 2;
        return (1 - 2 * r) * s;
    }

    float slope(float s, float r) const {
        if (kind_ == NON_SATURATING) return 1 / (1 + std::exp(-s)) - r;
        if (kind_ == LEAST_SQUARES) return s - r;
        return 1 - 2 * r;
    }

    Kind kind_;
};

static const RegisterOp<AdversarialLoss> registered("AdversarialLoss");

}  // namespace
}  // namespace engine
