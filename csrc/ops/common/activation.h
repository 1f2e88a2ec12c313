// A base for functions of one number that oneDNN has. The result may be written over the input, so backward reads the
// result if the gradient follows from it.
#pragma once

#include "ops/common/onednn_util.h"

namespace engine {

// inputs: x, float32 or bf16, in any layout; outputs: as x.
class Activation : public Op {
public:
    struct Function {
        algorithm how;
        float alpha = 0;
    };

    // from_result: whether backward reads y; else it reads x, which then stays in memory until backward.
    Activation(OpSpec spec, algorithm how, double alpha = 0, bool from_result = true)
        : Activation(std::move(spec), {how, float(alpha)}, {how, float(alpha)}, from_result) {}

    // For a function that forward computes by another algorithm than backward.
    Activation(OpSpec spec, Function forward, Function backward, bool from_result)
        : Op(std::move(spec)), function_(backward) {
        const Layout& layout = input(0)->layout;
        const forward_pd pd = make_forward(forward);
        output(0, layout);
        forward_calls_.push_back({dnnl::eltwise_forward(pd),
                                  {{DNNL_ARG_SRC, input(0)->memory},
                                   {DNNL_ARG_DST, outputs_[0]->memory},
                                   {DNNL_ARG_SCRATCHPAD, scratch(pd.scratchpad_desc())}}});
        implementation_ = pd.impl_info_str();
        touch(Pass::forward, {input(0), outputs_[0]});
        may_overwrite(Pass::forward, input(0), outputs_[0]);
        if (input_gradient(0) && output_gradient(0)) build_backward(from_result);
    }

    bool repeatable() const override { return true; }

private:
    using forward_pd = dnnl::eltwise_forward::primitive_desc;

    forward_pd make_forward(const Function& f) const {
        const Layout& layout = input(0)->layout;
        return forward_pd(cpu(), forward_kind(spec_), f.how, layout, layout, f.alpha, 0.f, user_scratchpad());
    }

    void build_backward(bool from_result) {
        const Layout& layout = input(0)->layout;
        const dnnl::eltwise_backward::primitive_desc pd(cpu(), function_.how, layout, layout, layout, function_.alpha,
                                                        0.f, make_forward(function_), user_scratchpad());
        const TensorPtr& known = from_result ? outputs_[0] : input(0);
        const TensorPtr &given = outputs_[0]->diff, &wanted = input(0)->diff;
        fresh_scratch();
        backward_calls_.push_back({dnnl::eltwise_backward(pd),
                                   {{from_result ? DNNL_ARG_DST : DNNL_ARG_SRC, known->memory},
                                    {DNNL_ARG_DIFF_DST, given->memory},
                                    {DNNL_ARG_DIFF_SRC, wanted->memory},
                                    {DNNL_ARG_SCRATCHPAD, scratch(pd.scratchpad_desc())}}});
        touch(Pass::backward, {known, given, wanted});
        may_overwrite(Pass::backward, given, wanted);
    }

    Function function_;
};

}  // namespace engine
