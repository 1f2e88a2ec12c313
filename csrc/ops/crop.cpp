// Cuts a window out of a blob.
// inputs: x, float32 or bf16, row-major if the window has other channels than x; outputs: the window, laid out as x;
// attributes: offsets (where the window begins, for each axis).
#include "ops/common/copy_op.h"
#include "ops/common/elementwise.h"

namespace engine {
namespace {

class Crop : public CopyOp {
public:
    explicit Crop(OpSpec spec) : CopyOp(std::move(spec)) {
        const TensorPtr& x = input(0);
        const Dims& dims = spec_.output_shapes[0];
        const Layout window = x->layout.submemory_desc(dims, spec_.attributes.integers("offsets"));
        output(0, layout_like(x->layout, dims, x->layout.get_data_type()));
        copy(x->as(window), outputs_[0]->memory, forward_calls_);
        touch(Pass::forward, {x, outputs_[0]});
        if (!input_gradient(0) || !output_gradient(0)) return;
        copy(outputs_[0]->diff->memory, x->diff->as(window), backward_calls_);
        touch(Pass::backward, {outputs_[0]->diff, x->diff});
    }

    void backward(const dnnl::stream& stream) override {
        Numbers(input(0)->diff->memory).clear();  // outside the window
        run(backward_calls_, stream);
    }
};

static const RegisterOp<Crop> registered("Crop");

}  // namespace
}  // namespace engine
