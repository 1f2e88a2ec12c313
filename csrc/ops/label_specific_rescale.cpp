// Multiplies the score x of the sample's own class by a weight, or with as_power maps it to sign(x) |x|^weight; all
// other scores are multiplied by negative_weight.
// inputs, outputs, further attributes: see label_specific_op.h, numbers: weight; attributes: anneal; positive_weight,
// or with anneal positive_weight_base, gamma, power, least, most; negative_weight; positive_only (negative x stay as
// they are); as_power; bias_fix (adds 1 - weight).
#include "ops/common/label_specific_op.h"

namespace engine {
namespace {

class LabelSpecificRescale : public LabelSpecificOp {
public:
    explicit LabelSpecificRescale(OpSpec spec) : LabelSpecificOp(std::move(spec), 1) {
        factor_ = float(real("negative_weight"));
        positive_only_ = spec_.attributes.flag("positive_only");
        as_power_ = spec_.attributes.flag("as_power");
        bias_fix_ = spec_.attributes.flag("bias_fix");
    }

protected:
    void begin_step() override {
        double weight = real("positive_weight");
        if (spec_.attributes.flag("anneal")) {
            weight = real("positive_weight_base") / growth("gamma", "power", 1);
            weight = std::min(std::max(weight, real("least")), real("most"));
        }
        numbers_[0] = float(weight);
    }
    float value(float x) const override {
        const float weight = numbers_[0];
        if (weight == 1 || (positive_only_ && !(x > 0))) return x;
        if (as_power_) return std::copysign(std::pow(std::abs(x), weight), x);
        return weight * x + (bias_fix_ ? 1 - weight : 0.f);
    }
    float slope(float x) const override {
        const float weight = numbers_[0];
        if (weight == 1 || (positive_only_ && !(x > 0))) return 1;
        return as_power_ ? weight * std::pow(std::abs(x), weight - 1) : weight;
    }

private:
    bool positive_only_, as_power_, bias_fix_;
};

static const RegisterOp<LabelSpecificRescale> registered("LabelSpecificRescale");

}  // namespace
}  // namespace engine
