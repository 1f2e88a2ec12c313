// Computes log(1 + exp(x)). inputs, outputs: see unary.h.
#include "kernels/squash.h"
#include "ops/common/unary.h"

namespace engine {
namespace {

struct BNLL {
    static constexpr bool from_result = false;
    explicit BNLL(const Attributes&) {}
    float value(float x) const {
        // The quotient makes up for what rounding has taken from 1 + e (W. Kahan's way to log(1 + e)).
        const float e = expf(-std::fabs(x)), sum = 1 + e;
        return (x > 0 ? x : 0.f) + (sum == 1 ? e : logf(sum) * (e / (sum - 1)));
    }
    float slope(float x) const { return sigmoid(x); }
};

static const RegisterOp<Unary<BNLL>> registered("BNLL");

}  // namespace
}  // namespace engine
