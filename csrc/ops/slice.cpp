// Cuts a blob into slices along an axis.
// inputs: x, float32 or bf16, row-major if a cut would lie within a block of its layout; outputs: the slices, laid out
// as x; attributes: axis.
#include "ops/common/copy_op.h"
#include "ops/common/elementwise.h"

namespace engine {
namespace {

class Slice : public CopyOp {
public:
    explicit Slice(OpSpec spec) : CopyOp(std::move(spec)) {
        if (outputs_.size() == 1) {
            output_view(0, input(0)->layout, input(0), true);
            touch(Pass::forward, input(0));
            if (input_gradient(0)) touch(Pass::backward, input(0)->diff);
            return;
        }
        const int64_t axis = spec_.attributes.integer("axis");
        touch(Pass::forward, input(0));
        if (input_gradient(0)) touch(Pass::backward, input(0)->diff);
        int64_t offset = 0;
        for (size_t i = 0; i < outputs_.size(); i++) {
            const Dims& dims = spec_.output_shapes[i];
            const TensorPtr top = output(i, layout_like(input(0)->layout, dims, input(0)->layout.get_data_type()));
            copy(slice(input(0), axis, offset, dims), top->memory, forward_calls_);
            touch(Pass::forward, top);
            if (input_gradient(0) && top->diff) {
                copy(top->diff->memory, slice(input(0)->diff, axis, offset, dims), backward_calls_);
                touch(Pass::backward, top->diff);
            }
            offset += dims[axis];
        }
    }

    void backward(const dnnl::stream& stream) override {
        // Tops that lead to no loss have no gradient: theirs is 0.
        if (backward_calls_.size() < outputs_.size() && outputs_.size() > 1) Numbers(input(0)->diff->memory).clear();
        run(backward_calls_, stream);
    }
};

static const RegisterOp<Slice> registered("Slice");

}  // namespace
}  // namespace engine
