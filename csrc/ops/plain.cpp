// Brings a tensor into row-major order, for the ops that think in rows; what the memory report calls a reorder.
// inputs: x; attributes: none. Where x is row-major already, the builder adds no such op.
#include "ops/common/onednn_util.h"

namespace engine {
namespace {

class Plain : public Op {
public:
    explicit Plain(OpSpec spec) : Op(std::move(spec)) {
        output(0, plain_layout(input(0)->layout.get_dims(), input(0)->layout.get_data_type()));
        forward_calls_.push_back(copy(input(0)->memory, outputs_[0]->memory));
        touch(Pass::forward, {input(0), outputs_[0]});
        if (!input_gradient(0)) return;
        backward_calls_.push_back(copy(outputs_[0]->diff->memory, input(0)->diff->memory));
        touch(Pass::backward, {outputs_[0]->diff, input(0)->diff});
    }

private:
    Call copy(memory from, memory to) {
        const dnnl::reorder::primitive_desc pd(from, to, user_scratchpad());
        fresh_scratch();
        implementation_ = pd.impl_info_str();
        return {dnnl::reorder(pd),
                {{DNNL_ARG_FROM, from}, {DNNL_ARG_TO, to}, {DNNL_ARG_SCRATCHPAD, scratch(pd.scratchpad_desc())}}};
    }
};

static const RegisterOp<Plain> registered("Plain");

}  // namespace
}  // namespace engine
