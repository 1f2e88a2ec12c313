// Softmax along one axis, in the layout of x.
// inputs: x; attributes: axis.
#include "onednn_util.h"

namespace engine {

class Softmax : public Op {
public:
    explicit Softmax(OpSpec spec) : Op(std::move(spec)) {
        axis_ = int(spec_.attributes.integer("axis"));
        const Layout& layout = input(0)->layout;
        const forward_pd pd(cpu(), forward_kind(spec_), algorithm::softmax_accurate, layout, layout, axis_,
                            user_scratchpad());
        const TensorPtr y = output(0, layout);
        forward_calls_.push_back({dnnl::softmax_forward(pd),
                                  {{DNNL_ARG_SRC, input(0)->memory},
                                   {DNNL_ARG_DST, y->memory},
                                   {DNNL_ARG_SCRATCHPAD, scratch(pd.scratchpad_desc())}}});
        implementation_ = pd.impl_info_str();
        touch(Pass::forward, {input(0), y});
        may_overwrite(Pass::forward, input(0), y);
        if (input_gradient(0)) build_backward(pd);
    }

private:
    using forward_pd = dnnl::softmax_forward::primitive_desc;

    void build_backward(const forward_pd& hint) {
        const Layout& layout = input(0)->layout;
        const TensorPtr y = outputs_[0], &diff_x = input(0)->diff;
        const dnnl::softmax_backward::primitive_desc pd(cpu(), algorithm::softmax_accurate, layout, layout, layout,
                                                        axis_, hint, user_scratchpad());
        fresh_scratch();
        backward_calls_.push_back({dnnl::softmax_backward(pd),
                                   {{DNNL_ARG_DST, y->memory},
                                    {DNNL_ARG_DIFF_DST, y->diff->memory},
                                    {DNNL_ARG_DIFF_SRC, diff_x->memory},
                                    {DNNL_ARG_SCRATCHPAD, scratch(pd.scratchpad_desc())}}});
        touch(Pass::backward, {y, y->diff, diff_x});
        may_overwrite(Pass::backward, y->diff, diff_x);
    }

    int axis_;
};

static const RegisterOp<Softmax> registered("Softmax");

}  // namespace engine
