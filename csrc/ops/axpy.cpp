// Computes y = a x + added, with an a for each channel of each sample.
// inputs: x (N, C, ...), a (N, C), row-major, and `added`, of x's shape, all float32 or bf16; outputs: y, as x;
// attributes: axis 0 and num_axes 2, the axes of x that a covers.
#include "ops/common/affine.h"

namespace engine {
namespace {

class Axpy : public Affine {
public:
    explicit Axpy(OpSpec spec) : Affine(std::move(spec)) {
        scale_ = coefficient_input(1);
        build(2);
    }
};

static const RegisterOp<Axpy> registered("Axpy");

}  // namespace
}  // namespace engine
