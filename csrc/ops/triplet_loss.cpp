// An anchor shall be closer to what is like it than to what is not, by a margin: half the mean of
// max(margin + |a - p|^2 - |a - n|^2, 0). inputs: a (N, ...), p and n (as a); attributes: loss_weight, margin.
#include <algorithm>

#include "ops/common/row_loss.h"

namespace engine {
namespace {

class TripletLoss : public RowLoss {
public:
    explicit TripletLoss(OpSpec spec)
        : RowLoss(std::move(spec)), margin_(spec_.attributes.real("margin")), gaps_(rows_) {}

    void forward(const dnnl::stream&) override {
        add_up([this](int64_t i) {
            double sum = margin_;
            for (int64_t k = i * row_; k < (i + 1) * row_; k++) {
                const double like = double(value(0, k)) - double(value(1, k));
                const double unlike = double(value(0, k)) - double(value(2, k));
                sum += like * like - unlike * unlike;
            }
            gaps_[i] = sum;
            return std::max(sum, 0.) / 2;
        });
    }

    void backward(const dnnl::stream&) override {
        // Which of the two it is subtracted from: the derivatives are n - p, p - a and a - n.
        constexpr size_t terms[3][2] = {{2, 1}, {1, 0}, {0, 2}};
        for (size_t side = 0; side < 3; side++) {
            if (!input_gradient(side)) continue;
            float* const diff = input(side)->diff->data();
#pragma omp parallel for
            for (int64_t i = 0; i < rows_; i++) {
                const float scale = gaps_[i] > 0 ? gradient_scale() : 0.f;
                for (int64_t k = i * row_; k < (i + 1) * row_; k++)
                    diff[k] = scale * (value(terms[side][0], k) - value(terms[side][1], k));
            }
        }
    }

private:
    float value(size_t side, int64_t k) const { return input(side)->data()[k]; }

    double margin_;
    std::vector<double> gaps_;
};

static const RegisterOp<TripletLoss> registered("TripletLoss");

}  // namespace
}  // namespace engine
