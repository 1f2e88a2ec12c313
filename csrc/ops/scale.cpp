// Computes y = x scale (+ shift), where scale and shift have the shape of one or several axes of x.
// inputs: x and, in the two-bottom form, scale, row-major, both float32 or bf16; outputs: y, as x; attributes: axis,
// num_axes (which axes of x the coefficients cover), bias.
// params: scale in the one-bottom form, shift with `bias`.
#include "ops/common/affine.h"

namespace engine {
namespace {

class Scale : public Affine {
public:
    explicit Scale(OpSpec spec) : Affine(std::move(spec)) {
        const bool two_bottoms = spec_.inputs.size() > 1;
        scale_ = two_bottoms ? coefficient_input(1) : coefficient_param(0);
        if (spec_.attributes.flag("bias")) shift_ = coefficient_param(two_bottoms ? 0 : 1);
        build();
    }
};

static const RegisterOp<Scale> registered("Scale");

}  // namespace
}  // namespace engine
