// Computes, for each sample, positive_weight min(max(own - positive_margin, 0), positive_outlier_thresh) plus the
// logarithm of the sum of exp(negative_weight (negative_margin - other)) over the other distances below
// negative_margin; with `square`, of the squares of both.
// inputs, outputs, further attributes: see distance_loss_op.h; attributes: those named above.
#include "ops/common/distance_loss_op.h"

namespace engine {
namespace {

class SoftContrastiveLoss : public DistanceLossOp {
public:
    explicit SoftContrastiveLoss(OpSpec spec)
        : DistanceLossOp(std::move(spec)), margins_(spec_.attributes), square_(flag("square")) {
        relative_weights_ = true;
    }

protected:
    double row(const float* d, int64_t label, float* slopes, Means& means) const override {
        std::fill_n(slopes, row_, 0.f);
        means.own = margins_.own(d[label]);
        double loss = margins_.own_weight * (square_ ? means.own * means.own : means.own);
        if (margins_.own_slopes(d[label]))
            slopes[label] = float(margins_.own_weight * (square_ ? double(d[label]) : 1.));
        double sum = 0;
        for (int64_t j = 0; j < row_; j++) {
            if (j == label || !(d[j] < margins_.other_margin)) continue;
            const double gap = margins_.other_margin - d[j],
                         term = std::exp(margins_.other_weight * (square_ ? gap * gap : gap));
            means.others += gap;
            sum += term;
            slopes[j] = float(-margins_.other_weight * term * (square_ ? gap : 1.));
        }
        if (sum <= 0) return loss;
        for (int64_t j = 0; j < row_; j++)
            if (j != label) slopes[j] = float(slopes[j] / sum);
        return loss + std::log(sum);
    }

private:
    TwoMargins margins_;
    bool square_;
};

static const RegisterOp<SoftContrastiveLoss> registered("SoftContrastiveLoss");

}  // namespace
}  // namespace engine
