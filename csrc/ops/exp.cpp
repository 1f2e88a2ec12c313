// Computes factor exp(rate x). inputs, outputs: see unary.h; attributes: rate, factor.
#include "ops/common/unary.h"

namespace engine {
namespace {

struct Exp {
    static constexpr bool from_result = true;
    explicit Exp(const Attributes& a) : rate(float(a.real("rate"))), factor(float(a.real("factor"))) {}
    float value(float x) const { return factor * expf(rate * x); }
    float slope(float y) const { return rate * y; }
    float rate, factor;
};

static const RegisterOp<Unary<Exp>> registered("Exp");

}  // namespace
}  // namespace engine
