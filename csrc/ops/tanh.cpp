// Computes the hyperbolic tangent. inputs, outputs: see unary.h.
#include "kernels/squash.h"
#include "ops/common/unary.h"

namespace engine {
namespace {

struct TanH {
    static constexpr bool from_result = true;
    explicit TanH(const Attributes&) {}
    float value(float x) const { return squash(x); }
    float slope(float y) const { return 1 - y * y; }
};

static const RegisterOp<Unary<TanH>> registered("TanH");

}  // namespace
}  // namespace engine
