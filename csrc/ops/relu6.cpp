// Computes 0 where x is negative, 6 where it is above 6, else x. inputs, outputs: see unary.h.
#include "ops/common/unary.h"

namespace engine {
namespace {

struct ReLU6 {
    static constexpr bool from_result = true;
    explicit ReLU6(const Attributes&) {}
    float value(float x) const { return x < 0 ? 0.f : x > 6 ? 6.f : x; }
    float slope(float y) const { return y > 0 && y < 6 ? 1.f : 0.f; }
};

static const RegisterOp<Unary<ReLU6>> registered("ReLU6");

}  // namespace
}  // namespace engine
