// Computes min where x is less, max where it is more, else x.
// inputs, outputs: see unary.h; attributes: min, max.
#include "ops/common/unary.h"

namespace engine {
namespace {

struct Clip {
    static constexpr bool from_result = false;
    explicit Clip(const Attributes& a) : low(float(a.real("min"))), high(float(a.real("max"))) {}
    float value(float x) const { return x < low ? low : x > high ? high : x; }
    float slope(float x) const { return x >= low && x <= high ? 1.f : 0.f; }
    float low, high;
};

static const RegisterOp<Unary<Clip>> registered("Clip");

}  // namespace
}  // namespace engine
