// Brings a blob into row-major order, for ops that read rows. If it is row-major already, the builder adds no such op.
// inputs: x, float32 or bf16, in any layout; outputs: as x, row-major.
#include "ops/common/copy_op.h"

namespace engine {
namespace {

class Plain : public CopyOp {
public:
    explicit Plain(OpSpec spec) : CopyOp(std::move(spec)) {
        output(0, plain_layout(input(0)->layout.get_dims(), input(0)->layout.get_data_type()));
        copy(input(0)->memory, outputs_[0]->memory, forward_calls_);
        touch(Pass::forward, {input(0), outputs_[0]});
        if (!input_gradient(0)) return;
        copy(outputs_[0]->diff->memory, input(0)->diff->memory, backward_calls_);
        touch(Pass::backward, {outputs_[0]->diff, input(0)->diff});
    }
};

static const RegisterOp<Plain> registered("Plain");

}  // namespace
}  // namespace engine
