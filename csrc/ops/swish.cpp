// Computes x / (1 + exp(-beta x)). inputs, outputs: see unary.h; attributes: beta.
#include "kernels/squash.h"
#include "ops/common/unary.h"

namespace engine {
namespace {

struct Swish {
    static constexpr bool from_result = false;
    explicit Swish(const Attributes& a) : beta(float(a.real("beta"))) {}
    float value(float x) const { return x * sigmoid(beta * x); }
    float slope(float x) const {
        const float gate = sigmoid(beta * x);
        return gate + beta * x * gate * (1 - gate);
    }
    float beta;
};

static const RegisterOp<Unary<Swish>> registered("Swish");

}  // namespace
}  // namespace engine
