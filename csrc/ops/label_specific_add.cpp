// Adds a bias to the score x of the sample's own class if the sum is above 0.
// inputs, outputs, further attributes: see label_specific_op.h, numbers: bias; attributes: anneal; bias, or with anneal
// bias_base, bias_gamma, bias_power, bias_min, bias_max.
#include "ops/common/label_specific_op.h"

namespace engine {
namespace {

class LabelSpecificAdd : public LabelSpecificOp {
public:
    explicit LabelSpecificAdd(OpSpec spec) : LabelSpecificOp(std::move(spec), 1) {}

protected:
    void begin_step() override {
        double bias = real("bias");
        if (spec_.attributes.flag("anneal")) {
            bias = real("bias_base") + growth("bias_gamma", "bias_power") - 1;
            bias = std::min(std::max(bias, real("bias_min")), real("bias_max"));
        }
        numbers_[0] = float(bias);
    }
    float value(float x) const override { return x > -numbers_[0] ? x + numbers_[0] : x; }
    float slope(float) const override { return 1; }
};

static const RegisterOp<LabelSpecificAdd> registered("LabelSpecificAdd");

}  // namespace
}  // namespace engine
