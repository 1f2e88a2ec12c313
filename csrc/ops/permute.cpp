// Brings the axes of a blob into another order.
// inputs: x, float32 or bf16, in any layout; outputs: of its type, row-major; attributes: order (which of x's axes
// becomes axis 0, 1, ...).
#include "ops/common/copy_op.h"

namespace engine {
namespace {

class Permute : public CopyOp {
public:
    explicit Permute(OpSpec spec) : CopyOp(std::move(spec)) {
        const TensorPtr& x = input(0);
        const auto type = x->layout.get_data_type();
        output(0, plain_layout(spec_.output_shapes[0], type));
        // The top's memory, described with the axes of x.
        const Dims order = spec_.attributes.integers("order"), strides = outputs_[0]->layout.get_strides();
        Dims renamed(order.size());
        for (size_t i = 0; i < order.size(); i++) renamed[order[i]] = strides[i];
        const Layout as_x(x->layout.get_dims(), type, renamed);
        copy(x->memory, outputs_[0]->as(as_x), forward_calls_);
        touch(Pass::forward, {x, outputs_[0]});
        if (!input_gradient(0) || !output_gradient(0)) return;
        copy(outputs_[0]->diff->as(as_x), x->diff->memory, backward_calls_);
        touch(Pass::backward, {outputs_[0]->diff, x->diff});
    }
};

static const RegisterOp<Permute> registered("Permute");

}  // namespace
}  // namespace engine
