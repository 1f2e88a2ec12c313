// What Convolution and InnerProduct have in common: a source, weights, an optional bias, and three primitives.
// params: weights, bias.
#pragma once

#include "onednn_util.h"

namespace engine {

class Weighted : public Op {
protected:
    explicit Weighted(OpSpec spec) : Op(std::move(spec)), bias_(spec_.attributes.flag("bias")) {}

    bool weights_learn() const { return param_gradient(0) || (bias_ && param_gradient(1)); }

    // In bf16 the forward kernel reads a copy in any case: the parameter, float32, is laid out as its gradient is.
    void decide_weights(const Layout& gradient) {
        if (!param(0)->decided()) param(0)->decide(gradient);
    }

    template <typename Primitive>
    void add_forward(const typename Primitive::primitive_desc& pd) {
        const memory src = reading(input(0), pd.src_desc(), forward_calls_);
        const memory weights = reading_param(0, pd.weights_desc(), forward_calls_);
        output(0, pd.dst_desc());
        Call call{Primitive(pd),
                  {{DNNL_ARG_SRC, src}, {DNNL_ARG_WEIGHTS, weights}, {DNNL_ARG_DST, outputs_[0]->memory}}};
        if (bias_) call.args[DNNL_ARG_BIAS] = reading_param(1, pd.bias_desc(), forward_calls_);
        call.args[DNNL_ARG_SCRATCHPAD] = scratch(pd.scratchpad_desc());
        forward_calls_.push_back(call);
        implementation_ = pd.impl_info_str();
        touch(Pass::forward, {input(0), outputs_[0]});
    }

    template <typename Primitive>
    void add_backward_weights(const typename Primitive::primitive_desc& pd) {
        fresh_scratch();
        const memory src = reading(input(0), pd.src_desc(), backward_calls_);
        const memory diff_dst = reading(outputs_[0]->diff, pd.diff_dst_desc(), backward_calls_);
        const Target weights = writing_gradient(0, pd.diff_weights_desc());
        Call call{Primitive(pd),
                  {{DNNL_ARG_SRC, src}, {DNNL_ARG_DIFF_DST, diff_dst}, {DNNL_ARG_DIFF_WEIGHTS, weights.memory}}};
        Target bias;
        if (bias_) {
            bias = writing_gradient(1, pd.diff_bias_desc());
            call.args[DNNL_ARG_DIFF_BIAS] = bias.memory;
        }
        call.args[DNNL_ARG_SCRATCHPAD] = scratch(pd.scratchpad_desc());
        backward_calls_.push_back(call);
        finish(weights, backward_calls_);
        finish(bias, backward_calls_);
        touch(Pass::backward, {input(0), outputs_[0]->diff});
    }

    template <typename Primitive>
    void add_backward_data(const typename Primitive::primitive_desc& pd) {
        fresh_scratch();
        const memory diff_dst = reading(outputs_[0]->diff, pd.diff_dst_desc(), backward_calls_);
        const memory weights = reading_param(0, pd.weights_desc(), backward_calls_);
        const Target diff_src = writing(input(0)->diff, pd.diff_src_desc());
        Call call{Primitive(pd),
                  {{DNNL_ARG_DIFF_DST, diff_dst}, {DNNL_ARG_WEIGHTS, weights}, {DNNL_ARG_DIFF_SRC, diff_src.memory}}};
        call.args[DNNL_ARG_SCRATCHPAD] = scratch(pd.scratchpad_desc());
        backward_calls_.push_back(call);
        finish(diff_src, backward_calls_);
        touch(Pass::backward, {outputs_[0]->diff, input(0)->diff});
    }

    bool bias_;
    // As they are asked for: "any" where the kernel may choose. Gradients of parameters are float32.
    Layout src_, dst_, weights_, diff_weights_, bias_layout_;
};

}  // namespace engine
