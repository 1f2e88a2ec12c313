// The axes of a blob in another order. inputs: x, in any layout; outputs: row-major; attributes: order (which of x's
// axes becomes axis 0, 1, ...).
#include "ops/common/parts.h"

namespace engine {
namespace {

class Permute : public Parts {
public:
    explicit Permute(OpSpec spec) : Parts(std::move(spec)) {
        const TensorPtr& x = input(0);
        const auto type = x->layout.get_data_type();
        output(0, plain_layout(spec_.output_shapes[0], type));
        // The same memory as the top, its axes named as x's are.
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
