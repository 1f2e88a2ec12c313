// Computes a loss by which an anchor a gets closer to a like sample p than to an unlike n, by a margin: half the mean
// of max(margin + |a - p|^2 - |a - n|^2, 0).
// inputs: a (N, ...), p and n (as a); outputs, further attributes: see row_loss.h; attributes: margin.
#include <algorithm>

#include "kernels/vectorised.h"
#include "ops/common/row_loss.h"

namespace engine {
namespace {

// Returns |a - p|^2 - |a - n|^2.
ENGINE_VECTORISED double gap(const float* a, const float* p, const float* n, int64_t length) {
    double sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t k = 0; k < length; k++) {
        const double like = double(a[k]) - double(p[k]), unlike = double(a[k]) - double(n[k]);
        sum += like * like - unlike * unlike;
    }
    return sum;
}

class TripletLoss : public RowLoss {
public:
    explicit TripletLoss(OpSpec spec)
        : RowLoss(std::move(spec)), margin_(spec_.attributes.real("margin")), gaps_(rows_) {}

    void forward(const dnnl::stream&) override {
        const float *const a = input(0)->data(), *const p = input(1)->data(), *const n = input(2)->data();
        add_up([=, this](int64_t i) {
            gaps_[i] = margin_ + gap(a + i * row_, p + i * row_, n + i * row_, row_);
            return std::max(gaps_[i], 0.) / 2;
        });
    }

    void backward(const dnnl::stream&) override {
        // The derivatives with respect to a, p and n: n - p, p - a and a - n, as numbers of the inputs.
        constexpr size_t terms[3][2] = {{2, 1}, {1, 0}, {0, 2}};
        for (size_t side = 0; side < 3; side++) {
            if (!input_gradient(side)) continue;
            const float* const from = input(terms[side][0])->data();
            const float* const subtracted = input(terms[side][1])->data();
            float* const diff = input(side)->diff->data();
#pragma omp parallel for
            for (int64_t i = 0; i < rows_; i++) {
                const float scale = gaps_[i] > 0 ? gradient_scale() : 0.f;
                for (int64_t k = i * row_; k < (i + 1) * row_; k++) diff[k] = scale * (from[k] - subtracted[k]);
            }
        }
    }

private:
    double margin_;
    std::vector<double> gaps_;
};

static const RegisterOp<TripletLoss> registered("TripletLoss");

}  // namespace
}  // namespace engine
