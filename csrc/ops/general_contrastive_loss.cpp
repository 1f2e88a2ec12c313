// Computes, for each sample, positive_weight min(max(own - positive_margin, 0), positive_outlier_thresh) plus the sum
// of negative_weight max(negative_margin - other, 0) over the other distances; with exp_negative_weight, of
// negative_weight exp(-other) for those below the margin. With max_negative_only, the nearest of them alone counts.
// With positive_first, the own distance alone counts if it is above positive_upper_bound.
// inputs, outputs, further attributes: see distance_loss_op.h; attributes: those named above, and normalize_negative.
// If that is above 0, let q be the mean over the samples of the sum of the others' derivatives, divided by it: they are
// divided by q if q is above positive_weight.
#include "ops/common/distance_loss_op.h"

namespace engine {
namespace {

class GeneralContrastiveLoss : public DistanceLossOp {
public:
    explicit GeneralContrastiveLoss(OpSpec spec)
        : DistanceLossOp(std::move(spec)),
          margins_(spec_.attributes),
          normalize_(real("normalize_negative")),
          bound_(flag("positive_first") ? real("positive_upper_bound") : HUGE_VAL),
          nearest_(flag("max_negative_only")),
          exponential_(flag("exp_negative_weight")) {}

protected:
    double row(const float* d, int64_t label, float* slopes, Means& means) const override {
        std::fill_n(slopes, row_, 0.f);
        means.own = margins_.own(d[label]);
        const double own = means.own * margins_.own_weight;
        double loss = 0, largest = 0;
        int64_t nearest = -1;
        for (int64_t j = 0; j < row_; j++) {
            if (j == label || !(d[j] < margins_.other_margin)) continue;
            const double term =
                margins_.other_weight * (exponential_ ? std::exp(-double(d[j])) : margins_.other_margin - d[j]);
            means.others += margins_.other_margin - d[j];
            loss += term;
            slopes[j] = float(exponential_ ? -term : -margins_.other_weight);
            if (nearest < 0 || d[j] < d[nearest]) {
                nearest = j;
                largest = term;
            }
        }
        if (nearest_ && nearest >= 0) {
            const float slope = slopes[nearest];
            std::fill_n(slopes, row_, 0.f);
            slopes[nearest] = slope;
            loss = largest;
        }
        if (d[label] > bound_) {
            std::fill_n(slopes, row_, 0.f);
            slopes[label] = float(margins_.own_weight);
            return std::abs(own);
        }
        if (margins_.own_slopes(d[label])) slopes[label] = float(margins_.own_weight);
        return std::abs(own) + std::abs(loss);
    }

    float other_factor() const override {
        if (normalize_ <= 0) return 1;
        double sum = 0;
        for (int64_t i = 0; i < rows_; i++)
            for (int64_t j = 0; j < row_; j++)
                if (j != labels_[i]) sum -= slopes_->data()[i * row_ + j];
        sum = std::abs(sum) / normalize_ / double(rows_);
        return sum > margins_.own_weight ? float(1 / sum) : 1;
    }

private:
    TwoMargins margins_;
    double normalize_, bound_;
    bool nearest_, exponential_;
};

static const RegisterOp<GeneralContrastiveLoss> registered("GeneralContrastiveLoss");

}  // namespace
}  // namespace engine
