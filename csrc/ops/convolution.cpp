// Convolution in any number of spatial dimensions, with groups, dilation and an optional bias.
// inputs: x (N, C, ...); params: weights (O, C/group, ...), bias (O); attributes: kernel, stride, pad, dilation (one each per
// spatial axis), group, bias.
#include "onednn_util.h"

namespace engine {

class Convolution : public Op {
public:
    explicit Convolution(OpSpec spec) : Op(std::move(spec)) {
        const auto& attributes = spec_.attributes;
        bias_ = attributes.flag("bias");
        stride_ = attributes.integers("stride");
        pad_ = attributes.integers("pad");
        dilation_ = attributes.integers("dilation");
        for (auto& d : dilation_) d -= 1;  // oneDNN counts the holes
        const int64_t group = attributes.integer("group", 1);
        const Dims& in = input(0)->shape;
        const Dims& out = spec_.output_shapes[0];
        const auto type = input(0)->layout.get_data_type();
        Dims weights{out[1] / group, in[1] / group};
        if (group > 1) weights.insert(weights.begin(), group);
        for (int64_t k : attributes.integers("kernel")) weights.push_back(k);
        src_ = any_layout(in, type);
        dst_ = any_layout(out, type);
        weights_ = any_layout(weights, type);
        if (bias_) bias_layout_ = any_layout({out[1]}, type);

        const forward_pd pd = make_forward();
        build_forward(pd);
        if (param_gradient(0) || (bias_ && param_gradient(1))) build_backward_weights(pd);
        if (input_gradient(0)) build_backward_data(pd);
        touch(Pass::forward, {input(0), outputs_[0]});
    }

private:
    using forward_pd = dnnl::convolution_forward::primitive_desc;

    forward_pd make_forward() const {
        const auto kind = forward_kind(spec_);
        const auto how = algorithm::convolution_direct;
        if (bias_)
            return forward_pd(cpu(), kind, how, src_, weights_, bias_layout_, dst_, stride_, dilation_, pad_, pad_, user_scratchpad());
        return forward_pd(cpu(), kind, how, src_, weights_, dst_, stride_, dilation_, pad_, pad_, user_scratchpad());
    }

    void build_forward(const forward_pd& pd) {
        const memory src = reading(input(0), pd.src_desc(), forward_calls_);
        const memory weights = reading_param(0, pd.weights_desc(), forward_calls_);
        output(0, pd.dst_desc());
        Call call{dnnl::convolution_forward(pd),
                  {{DNNL_ARG_SRC, src}, {DNNL_ARG_WEIGHTS, weights}, {DNNL_ARG_DST, outputs_[0]->memory}}};
        if (bias_) call.args[DNNL_ARG_BIAS] = reading_param(1, pd.bias_desc(), forward_calls_);
        call.args[DNNL_ARG_SCRATCHPAD] = scratch(pd.scratchpad_desc());
        forward_calls_.push_back(call);
        implementation_ = pd.impl_info_str();
    }

    void build_backward_weights(const forward_pd& hint) {
        using backward_pd = dnnl::convolution_backward_weights::primitive_desc;
        const auto how = algorithm::convolution_direct;
        const backward_pd pd =
            bias_ ? backward_pd(cpu(), how, src_, weights_, bias_layout_, dst_, stride_, dilation_, pad_, pad_, hint, user_scratchpad())
                  : backward_pd(cpu(), how, src_, weights_, dst_, stride_, dilation_, pad_, pad_, hint, user_scratchpad());
        fresh_scratch();
        const memory src = reading(input(0), pd.src_desc(), backward_calls_);
        const memory diff_dst = reading(outputs_[0]->diff, pd.diff_dst_desc(), backward_calls_);
        const Target weights = writing_gradient(0, pd.diff_weights_desc());
        Call call{dnnl::convolution_backward_weights(pd),
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

    void build_backward_data(const forward_pd& hint) {
        const dnnl::convolution_backward_data::primitive_desc pd(cpu(), algorithm::convolution_direct, src_, weights_, dst_, stride_,
                                                                 dilation_, pad_, pad_, hint, user_scratchpad());
        fresh_scratch();
        const memory diff_dst = reading(outputs_[0]->diff, pd.diff_dst_desc(), backward_calls_);
        const memory weights = reading_param(0, pd.weights_desc(), backward_calls_);
        const Target diff_src = writing(input(0)->diff, pd.diff_src_desc());
        Call call{dnnl::convolution_backward_data(pd),
                  {{DNNL_ARG_DIFF_DST, diff_dst}, {DNNL_ARG_WEIGHTS, weights}, {DNNL_ARG_DIFF_SRC, diff_src.memory}}};
        call.args[DNNL_ARG_SCRATCHPAD] = scratch(pd.scratchpad_desc());
        backward_calls_.push_back(call);
        finish(diff_src, backward_calls_);
        touch(Pass::backward, {outputs_[0]->diff, input(0)->diff});
    }

    bool bias_;
    Dims stride_, pad_, dilation_;
    Layout src_, dst_, weights_, bias_layout_;
};

static const RegisterOp<Convolution> registered("Convolution");

}  // namespace engine
