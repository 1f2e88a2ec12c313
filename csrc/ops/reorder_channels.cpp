// Brings the channels of a blob into another order.
// inputs: x (N, C, ...), float32 or bf16, any layout with rows of channels; outputs: as x; attributes: order (which
// channel of x becomes channel 0, 1, ...).
#include "kernels/channel_order.h"
#include "ops/common/channel_layout.h"
#include "ops/common/parts.h"

namespace engine {
namespace {

class ReorderChannels : public Op {
public:
    explicit ReorderChannels(OpSpec spec) : Op(std::move(spec)) {
        const Layout& layout = input(0)->layout;
        const Layout top = layout_like(layout, spec_.output_shapes[0], layout.get_data_type());
        const Dims order = spec_.attributes.integers("order");
        Dims back(order.size());
        for (size_t c = 0; c < order.size(); c++) back[order[c]] = int64_t(c);
        const ChannelRows rows = rows_of_both(layout, top).top;
        forward_ = ChannelOrder(rows, order);
        backward_ = ChannelOrder(rows, back);
        output(0, top);
        touch(Pass::forward, {input(0), outputs_[0]});
        if (input_gradient(0) && output_gradient(0)) touch(Pass::backward, {outputs_[0]->diff, input(0)->diff});
    }

    void forward(const dnnl::stream&) override { apply(forward_, input(0), outputs_[0]); }
    void backward(const dnnl::stream&) override { apply(backward_, outputs_[0]->diff, input(0)->diff); }

private:
    static void apply(const ChannelOrder& order, const TensorPtr& from, const TensorPtr& to) {
        if (from->is_bf16())
            order.apply(address<bf16>(from), address<bf16>(to));
        else
            order.apply(from->data(), to->data());
    }

    ChannelOrder forward_, backward_;
};

static const RegisterOp<ReorderChannels> registered("ReorderChannels");

}  // namespace
}  // namespace engine
