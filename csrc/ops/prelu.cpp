// x where it is positive, else slope x, with one slope for each channel or one for all.
// inputs: x (N, C, ...); params: slopes (C) or ().
#include "onednn_util.h"

namespace engine {

class PReLU : public Op {
public:
    explicit PReLU(OpSpec spec) : Op(std::move(spec)) {
        const Layout& layout = input(0)->layout;
        Dims dims(layout.get_ndims(), 1);
        dims[1] = param(0)->count();
        slopes_ = plain_layout(dims);
        const forward_pd pd(cpu(), forward_kind(spec_), layout, slopes_, layout, user_scratchpad());
        const memory slopes = reading_param(0, slopes_, forward_calls_);
        output(0, layout);
        forward_calls_.push_back({dnnl::prelu_forward(pd),
                                  {{DNNL_ARG_SRC, input(0)->memory},
                                   {DNNL_ARG_WEIGHTS, slopes},
                                   {DNNL_ARG_DST, outputs_[0]->memory},
                                   {DNNL_ARG_SCRATCHPAD, scratch(pd.scratchpad_desc())}}});
        implementation_ = pd.impl_info_str();
        touch(Pass::forward, {input(0), outputs_[0]});
        may_overwrite(Pass::forward, input(0), outputs_[0]);
        if (needs_backward() && output_gradient(0)) build_backward(pd);
    }

private:
    using forward_pd = dnnl::prelu_forward::primitive_desc;

    // The primitive gives both gradients or none; what nobody wants goes to scratch.
    void build_backward(const forward_pd& hint) {
        const Layout& layout = input(0)->layout;
        const dnnl::prelu_backward::primitive_desc pd(cpu(), layout, slopes_, layout, slopes_, layout, hint,
                                                      user_scratchpad());
        fresh_scratch();
        const memory slopes = reading_param(0, slopes_, backward_calls_);
        const Target slope_gradient = writing_gradient(0, slopes_);
        const TensorPtr &given = outputs_[0]->diff, &wanted = input(0)->diff;
        backward_calls_.push_back({dnnl::prelu_backward(pd),
                                   {{DNNL_ARG_SRC, input(0)->memory},
                                    {DNNL_ARG_WEIGHTS, slopes},
                                    {DNNL_ARG_DIFF_DST, given->memory},
                                    {DNNL_ARG_DIFF_SRC, wanted ? wanted->memory : scratch(layout)},
                                    {DNNL_ARG_DIFF_WEIGHTS, slope_gradient.memory},
                                    {DNNL_ARG_SCRATCHPAD, scratch(pd.scratchpad_desc())}}});
        finish(slope_gradient, backward_calls_);
        touch(Pass::backward, {input(0), given});
        if (!wanted) return;
        touch(Pass::backward, wanted);
        may_overwrite(Pass::backward, given, wanted);
    }

    Layout slopes_;
};

static const RegisterOp<PReLU> registered("PReLU");

}  // namespace engine
