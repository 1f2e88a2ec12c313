// Computes, for each sample, the sum of negative_weight max(own + margin - other, 0) over the other distances; with
// hardest_only, the largest term. The own distance's derivative is positive_weight if any other is too close, however
// many are; with add_center_loss, always. With positive_first, the own distance alone has one if it is above
// positive_upper_bound.
// inputs, outputs, further attributes: see distance_loss_op.h; attributes: margin, and those named above.
#include "ops/common/distance_loss_op.h"

namespace engine {
namespace {

class GeneralTripletLoss : public DistanceLossOp {
public:
    explicit GeneralTripletLoss(OpSpec spec)
        : DistanceLossOp(std::move(spec)),
          margin_(real("margin")),
          own_weight_(real("positive_weight")),
          other_weight_(real("negative_weight")),
          bound_(flag("positive_first") ? real("positive_upper_bound") : HUGE_VAL),
          always_(flag("add_center_loss")),
          hardest_(flag("hardest_only")) {}

protected:
    double row(const float* d, int64_t label, float* slopes, Means& means) const override {
        means.own = d[label];
        std::fill_n(slopes, row_, 0.f);
        double loss = 0;
        int64_t worst = -1;
        for (int64_t j = 0; j < row_; j++) {
            if (j == label) continue;
            means.others += d[j];
            const double gap = d[label] + margin_ - d[j];
            if (!(gap > 0)) continue;
            loss += gap * other_weight_;
            slopes[j] = -float(other_weight_);
            if (worst < 0 || d[j] < d[worst]) worst = j;
        }
        if (hardest_ && worst >= 0) {
            std::fill_n(slopes, row_, 0.f);
            slopes[worst] = -float(other_weight_);
            loss = (d[label] + margin_ - d[worst]) * other_weight_;
        }
        if (d[label] > bound_) {  // the own distance comes first
            std::fill_n(slopes, row_, 0.f);
            loss = 0;
        }
        if (always_ || worst >= 0 || d[label] > bound_) slopes[label] = float(own_weight_);
        return loss;
    }

private:
    double margin_, own_weight_, other_weight_, bound_;
    bool always_, hardest_;
};

static const RegisterOp<GeneralTripletLoss> registered("GeneralTripletLoss");

}  // namespace
}  // namespace engine
