// Computes softmax along one axis.
// inputs: x, float32, row-major or in any layout with rows of channels; outputs: as x; attributes: axis.
#include "ops/common/softmax_op.h"

namespace engine {
namespace {

class Softmax : public SoftmaxOp {
public:
    explicit Softmax(OpSpec spec) : SoftmaxOp(std::move(spec)) {
        add_softmax(input(0), output(0, input(0)->layout), int(spec_.attributes.integer("axis")));
        if (input_gradient(0)) add_softmax_backward(input(0)->diff);
    }
};

static const RegisterOp<Softmax> registered("Softmax");

}  // namespace
}  // namespace engine
