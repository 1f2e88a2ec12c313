// Maps the score of the sample's own class, an angle x in radians, to scale pi^(1 - power) x^power + bias, at most pi -
// 1e-4.
// inputs, outputs, further attributes: see label_specific_op.h, numbers: scale, bias in degrees, power; attributes:
// scale_base, scale_gamma, scale_power, scale_max; bias_base, bias_gamma, bias_power, bias_max; power_base,
// power_gamma, power_power, power_min.
// params: three numbers of files, which nothing reads.
#include "ops/common/label_specific_op.h"

namespace engine {
namespace {

class LabelSpecificAffine : public LabelSpecificOp {
public:
    explicit LabelSpecificAffine(OpSpec spec) : LabelSpecificOp(std::move(spec), 3) { plain_param(0); }

protected:
    void begin_step() override {
        const double scale = real("scale_base") * growth("scale_gamma", "scale_power");
        const double bias = real("bias_base") + growth("bias_gamma", "bias_power") - 1;
        const double power = real("power_base") * growth("power_gamma", "power_power");
        numbers_[0] = float(std::min(scale, real("scale_max")));
        numbers_[1] = float(std::min(bias, real("bias_max")));
        numbers_[2] = float(std::max(power, real("power_min")));
        scale_ = numbers_[0] * float(std::pow(M_PI, 1 - numbers_[2]));
        bias_ = float(numbers_[1] / 180 * M_PI);
    }
    float value(float x) const override {
        return std::min(scale_ * std::pow(x, numbers_[2]) + bias_, float(M_PI - 1e-4));
    }
    float slope(float x) const override { return scale_ * numbers_[2] * std::pow(x, numbers_[2] - 1); }

private:
    float scale_ = 1, bias_ = 0;  // for angles in radians
};

static const RegisterOp<LabelSpecificAffine> registered("LabelSpecificAffine");

}  // namespace
}  // namespace engine
