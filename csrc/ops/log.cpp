// Computes factor log(shift + scale x). inputs, outputs: see unary.h; attributes: scale, shift, factor.
#include "ops/common/unary.h"

namespace engine {
namespace {

struct Log {
    static constexpr bool from_result = false;
    explicit Log(const Attributes& a)
        : scale(float(a.real("scale"))), shift(float(a.real("shift"))), factor(float(a.real("factor"))) {}
    float value(float x) const { return factor * logf(shift + scale * x); }
    float slope(float x) const { return factor * scale / (shift + scale * x); }
    float scale, shift, factor;
};

static const RegisterOp<Unary<Log>> registered("Log");

}  // namespace
}  // namespace engine
