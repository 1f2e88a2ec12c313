// What Convolution and InnerProduct have in common: a source, weights, an optional bias, a ReLU that the graph may have
// fused in, and three primitives. params: weights, bias.
#pragma once

#include "onednn_util.h"

namespace engine {

class Weighted : public Op {
protected:
    explicit Weighted(OpSpec spec)
        : Op(std::move(spec)), bias_(spec_.attributes.flag("bias")), relu_(spec_.attributes.flag("relu")) {}

    primitive_attr forward_attr() const {
        primitive_attr attr = user_scratchpad();
        if (!relu_) return attr;
        dnnl::post_ops post;
        post.append_eltwise(algorithm::eltwise_relu, 0.f, 0.f);
        attr.set_post_ops(post);
        return attr;
    }

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
        if (relu_ && needs_backward() && output_gradient(0)) close_relu();
    }

    // The gradient behind the ReLU, without what does not pass it.
    void close_relu() {
        const auto how = algorithm::eltwise_relu_use_dst_for_bwd;
        const Layout& layout = outputs_[0]->layout;
        const dnnl::eltwise_forward::primitive_desc hint(cpu(), prop_kind::forward_training, how, layout, layout, 0.f);
        const dnnl::eltwise_backward::primitive_desc pd(cpu(), how, layout, layout, layout, 0.f, 0.f, hint,
                                                        user_scratchpad());
        const TensorPtr& given = outputs_[0]->diff;
        passed_ = workspace("gradient", layout);
        fresh_scratch();
        backward_calls_.push_back({dnnl::eltwise_backward(pd),
                                   {{DNNL_ARG_DST, outputs_[0]->memory},
                                    {DNNL_ARG_DIFF_DST, given->memory},
                                    {DNNL_ARG_DIFF_SRC, passed_->memory},
                                    {DNNL_ARG_SCRATCHPAD, scratch(pd.scratchpad_desc())}}});
        touch(Pass::backward, {outputs_[0], given, passed_});
        may_overwrite(Pass::backward, given, passed_);
    }

    // The gradient that the primitives take.
    const TensorPtr& gradient() const { return passed_ ? passed_ : outputs_[0]->diff; }

    template <typename Primitive>
    void add_backward_weights(const typename Primitive::primitive_desc& pd) {
        fresh_scratch();
        const memory src = reading(input(0), pd.src_desc(), backward_calls_);
        const memory diff_dst = reading(gradient(), pd.diff_dst_desc(), backward_calls_);
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
        touch(Pass::backward, {input(0), gradient()});
    }

    template <typename Primitive>
    void add_backward_data(const typename Primitive::primitive_desc& pd) {
        fresh_scratch();
        const memory diff_dst = reading(gradient(), pd.diff_dst_desc(), backward_calls_);
        const memory weights = reading_param(0, pd.weights_desc(), backward_calls_);
        const Target diff_src = writing(input(0)->diff, pd.diff_src_desc());
        Call call{Primitive(pd),
                  {{DNNL_ARG_DIFF_DST, diff_dst}, {DNNL_ARG_WEIGHTS, weights}, {DNNL_ARG_DIFF_SRC, diff_src.memory}}};
        call.args[DNNL_ARG_SCRATCHPAD] = scratch(pd.scratchpad_desc());
        backward_calls_.push_back(call);
        finish(diff_src, backward_calls_);
        touch(Pass::backward, {gradient(), input(0)->diff});
    }

    bool bias_, relu_;
    TensorPtr passed_;
    // As they are asked for: "any" where the kernel may choose. Gradients of parameters are float32.
    Layout src_, dst_, weights_, diff_weights_, bias_layout_;
};

}  // namespace engine
