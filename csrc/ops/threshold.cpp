// Computes 1 where x is above the threshold, else 0. inputs, outputs: see unary.h; attributes: threshold.
#include "ops/common/unary.h"

namespace engine {
namespace {

struct Threshold {
    static constexpr bool from_result = false;
    explicit Threshold(const Attributes& a) : threshold(float(a.real("threshold"))) {}
    float value(float x) const { return x > threshold ? 1.f : 0.f; }
    float slope(float) const { return 0; }
    float threshold;
};

static const RegisterOp<Unary<Threshold>> registered("Threshold");

}  // namespace
}  // namespace engine
