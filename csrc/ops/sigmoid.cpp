// Computes 1 / (1 + exp(-x)). inputs, outputs: see unary.h.
#include "kernels/squash.h"
#include "ops/common/unary.h"

namespace engine {
namespace {

struct Sigmoid {
    static constexpr bool from_result = true;
    explicit Sigmoid(const Attributes&) {}
    float value(float x) const { return sigmoid(x); }
    float slope(float y) const { return y * (1 - y); }
};

static const RegisterOp<Unary<Sigmoid>> registered("Sigmoid");

}  // namespace
}  // namespace engine
