// Maps the score of the sample's own class, x = cos t, to cos(t + margin).
// inputs, outputs, further attributes: see label_specific_op.h, numbers: margin in degrees; attributes: anneal, with it
// margin_base, gamma, power; limited, with it margin_max.
// params: the margin in degrees, which is read without anneal.
//
// As in the fork's GPU code, x is bounded by +-(1 - 1e-4) and the slope by 0 and 2, because near +-1 it grows without
// limit. The slope is the derivative, cos m + sin m x / root(1 - x^2), where the fork has a minus.
#include "ops/common/label_specific_op.h"

namespace engine {
namespace {

class LabelSpecificMargin : public LabelSpecificOp {
public:
    explicit LabelSpecificMargin(OpSpec spec) : LabelSpecificOp(std::move(spec), 1) { plain_param(0); }

protected:
    void begin_step() override {
        double margin = param(0)->data()[0];
        if (spec_.attributes.flag("anneal")) margin = real("margin_base") + growth("gamma", "power") - 1;
        if (spec_.attributes.flag("limited")) margin = std::min(margin, real("margin_max"));
        numbers_[0] = float(margin);
        cosine_ = float(std::cos(margin / 180 * M_PI));
        sine_ = float(std::sin(margin / 180 * M_PI));
    }
    float value(float x) const override {
        if (numbers_[0] == 0) return x;
        const float inside = bounded(x);
        return inside * cosine_ - root(inside) * sine_;
    }
    float slope(float x) const override {
        if (numbers_[0] == 0) return 1;
        const float inside = bounded(x);
        return std::clamp(cosine_ + inside / root(inside) * sine_, 0.f, 2.f);
    }

private:
    static float bounded(float x) { return std::clamp(x, -1 + 1e-4f, 1 - 1e-4f); }
    static float root(float x) { return float(std::sqrt(1 - double(x) * double(x))); }

    float cosine_ = 1, sine_ = 0;
};

static const RegisterOp<LabelSpecificMargin> registered("LabelSpecificMargin");

}  // namespace
}  // namespace engine
