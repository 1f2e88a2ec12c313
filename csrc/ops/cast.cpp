// Converts a blob to another precision, and its gradient back. The layout stays, with two exceptions, which spare
// another pass: with in_rows the top is row-major, and images that become bf16 on a processor with AMX have channels
// last, because the kernels that read them want that.
// inputs: x, float32 or bf16, in any layout; outputs: as x; attributes: bf16 (the top's type; else float32), in_rows
// (the reader takes rows, not images).
#include "kernels/isa.h"
#include "ops/common/copy_op.h"

namespace engine {
namespace {

class Cast : public CopyOp {
public:
    explicit Cast(OpSpec spec) : CopyOp(std::move(spec)) {
        output(0, wanted_layout());
        copy(input(0)->memory, outputs_[0]->memory, forward_calls_);
        touch(Pass::forward, {input(0), outputs_[0]});
        if (!input_gradient(0) || !output_gradient(0)) return;
        copy(outputs_[0]->diff->memory, input(0)->diff->memory, backward_calls_);
        touch(Pass::backward, {outputs_[0]->diff, input(0)->diff});
    }

private:
    Layout wanted_layout() const {
        const Layout& layout = input(0)->layout;
        const Dims dims = layout.get_dims();
        const bool bf16 = spec_.attributes.flag("bf16");
        const auto type = bf16 ? memory::data_type::bf16 : memory::data_type::f32;
        if (spec_.attributes.flag("in_rows")) return plain_layout(dims, type);
        const bool is_images = dims.size() >= 3 && is_plain(layout);
        if (!bf16 || !is_images || !may_use(Isa::amx)) return layout_like(layout, dims, type);
        Dims strides(dims.size());
        int64_t stride = strides[1] = 1;
        stride = dims[1];
        for (size_t axis = dims.size() - 1; axis >= 2; axis--) {
            strides[axis] = stride;
            stride *= dims[axis];
        }
        strides[0] = stride;
        return Layout(dims, type, strides);
    }
};

static const RegisterOp<Cast> registered("Cast");

}  // namespace
}  // namespace engine
