// Computes a loss by which like pairs get close and others at least a margin apart (Hadsell et al. 2006): the mean of
// half of d^2 for like pairs, and of max(margin - d, 0)^2, or in the legacy version max(margin - d^2, 0), for others,
// where d is the distance of a and b.
// inputs: a (N, ...), b (as a), whether they are alike (N; 0: no), or labels of a and of b (N each), which are equal if
// they are; outputs, further attributes: see row_loss.h; attributes: margin, legacy_version.
#include <algorithm>
#include <cmath>

#include "kernels/double_sums.h"
#include "kernels/whole.h"
#include "ops/common/row_loss.h"

namespace engine {
namespace {

class ContrastiveLoss : public RowLoss {
public:
    explicit ContrastiveLoss(OpSpec spec)
        : RowLoss(std::move(spec)),
          margin_(float(spec_.attributes.real("margin"))),
          legacy_(spec_.attributes.flag("legacy_version")),
          squares_(rows_) {}

    void forward(const dnnl::stream&) override {
        add_up([this](int64_t i) {
            const float* const a = input(0)->data() + i * row_;
            const float* const b = input(1)->data() + i * row_;
            const double square = squared_distance(a, b, row_);
            squares_[i] = float(square);
            if (alike(i)) return square / 2;
            if (legacy_) return std::max(margin_ - square, 0.) / 2;
            const double gap = std::max(margin_ - std::sqrt(square), 0.);
            return gap * gap / 2;
        });
    }

    void backward(const dnnl::stream&) override {
        const float* const a = input(0)->data();
        const float* const b = input(1)->data();
        for (size_t side = 0; side < 2; side++) {
            if (!input_gradient(side)) continue;
            const float scale = side == 0 ? gradient_scale() : -gradient_scale();
            float* const diff = input(side)->diff->data();
#pragma omp parallel for
            for (int64_t i = 0; i < rows_; i++) {
                const float factor = scale * slope(i);
                for (int64_t k = i * row_; k < (i + 1) * row_; k++) diff[k] = factor * (a[k] - b[k]);
            }
        }
    }

private:
    static constexpr float least_distance = 1e-4f;  // Caffe adds this to d, so that nothing is divided by 0

    bool alike(int64_t i) const {
        const auto first = whole(input(2)->data()[i]);
        return spec_.inputs.size() > 3 ? first == whole(input(3)->data()[i]) : first != 0;
    }

    // Returns the factor of a - b in the gradient of a.
    float slope(int64_t i) const {
        if (alike(i)) return 1;
        if (legacy_) return margin_ - squares_[i] > 0 ? -1.f : 0.f;
        const float distance = std::sqrt(squares_[i]), gap = margin_ - distance;
        return gap > 0 ? -gap / (distance + least_distance) : 0;
    }

    float margin_;
    bool legacy_;
    std::vector<float> squares_;  // of the distances of the pairs
};

static const RegisterOp<ContrastiveLoss> registered("ContrastiveLoss");

}  // namespace
}  // namespace engine
