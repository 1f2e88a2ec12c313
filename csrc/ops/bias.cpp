// Computes y = x + shift, where shift has the shape of one or several axes of x.
// inputs: x and, in the two-bottom form, shift, row-major, both float32 or bf16; params: shift in the one-bottom form;
// outputs: y, as x; attributes: axis, num_axes (which axes of x shift covers).
#include "ops/common/affine.h"

namespace engine {
namespace {

class Bias : public Affine {
public:
    explicit Bias(OpSpec spec) : Affine(std::move(spec)) {
        shift_ = spec_.inputs.size() > 1 ? coefficient_input(1) : coefficient_param(0);
        build();
    }
};

static const RegisterOp<Bias> registered("Bias");

}  // namespace
}  // namespace engine
