// cos(t + margin) of x = cos t. params: the margin in degrees, for `anneal: 0`; attributes: anneal; margin_base, gamma,
// power; limited, margin_max.
// inputs, outputs, further attributes: see label_specific_op.h.
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
    float value(float x) const override { return numbers_[0] == 0 ? x : x * cosine_ - root(x) * sine_; }
    float slope(float x) const override { return numbers_[0] == 0 ? 1 : cosine_ + x / root(x) * sine_; }

private:
    static float root(float x) { return float(std::sqrt(std::max(1 - double(x) * double(x), 0.) + 1e-12)); }

    float cosine_ = 1, sine_ = 0;
};

static const RegisterOp<LabelSpecificMargin> registered("LabelSpecificMargin");

}  // namespace
}  // namespace engine
