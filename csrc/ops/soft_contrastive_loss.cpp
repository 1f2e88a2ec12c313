// As GeneralContrastiveLoss, but with the logarithm of the sum of exp(negative_weight (negative_margin - other)); with
// `square`, of the squares of both. Attributes: positive_margin, negative_margin, positive_weight, negative_weight,
// square, positive_outlier_thresh. inputs, outputs, further attributes: see distance_loss_op.h.
#include "ops/common/distance_loss_op.h"

namespace engine {
namespace {

class SoftContrastiveLoss : public DistanceLossOp {
public:
    explicit SoftContrastiveLoss(OpSpec spec)
        : DistanceLossOp(std::move(spec)),
          own_margin_(real("positive_margin")),
          margin_(real("negative_margin")),
          own_weight_(real("positive_weight")),
          other_weight_(real("negative_weight")),
          outlier_(real("positive_outlier_thresh")),
          square_(flag("square")) {
        relative_weights_ = true;
    }

protected:
    double row(const float* d, int64_t label, float* slopes, Means& means) const override {
        std::fill_n(slopes, row_, 0.f);
        means.own = std::min(std::max(d[label] - own_margin_, 0.), outlier_);
        double loss = own_weight_ * (square_ ? means.own * means.own : means.own);
        if (d[label] > own_margin_ && d[label] < outlier_)
            slopes[label] = float(own_weight_ * (square_ ? double(d[label]) : 1.));
        double sum = 0;
        for (int64_t j = 0; j < row_; j++) {
            if (j == label || !(d[j] < margin_)) continue;
            const double gap = margin_ - d[j], term = std::exp(other_weight_ * (square_ ? gap * gap : gap));
            means.others += gap;
            sum += term;
            slopes[j] = float(-other_weight_ * term * (square_ ? gap : 1.));
        }
        if (sum <= 0) return loss;
        for (int64_t j = 0; j < row_; j++)
            if (j != label) slopes[j] = float(slopes[j] / sum);
        return loss + std::log(sum);
    }

private:
    double own_margin_, margin_, own_weight_, other_weight_, outlier_;
    bool square_;
};

static const RegisterOp<SoftContrastiveLoss> registered("SoftContrastiveLoss");

}  // namespace
}  // namespace engine
