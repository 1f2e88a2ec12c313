// Computes (shift + scale x)^power. inputs, outputs: see unary.h; attributes: power, scale, shift.
#include "ops/common/unary.h"

namespace engine {
namespace {

struct Power {
    static constexpr bool from_result = false;
    explicit Power(const Attributes& a)
        : power(float(a.real("power"))), scale(float(a.real("scale"))), shift(float(a.real("shift"))) {}
    float value(float x) const { return raised(shift + scale * x, power); }
    float slope(float x) const {
        return power * scale == 0 ? 0.f : power * scale * raised(shift + scale * x, power - 1);
    }
    static float raised(float x, float power) {
        return power == 0 ? 1.f : power == 1 ? x : power == 2 ? x * x : powf(x, power);
    }
    float power, scale, shift;
};

static const RegisterOp<Unary<Power>> registered("Power");

}  // namespace
}  // namespace engine
