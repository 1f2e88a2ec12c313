// y = x W' + b, over everything from the given axis on.
// inputs: x (N, ...), where the layer has merged the axes before its own into N; params: weights (O, K), or (K, O) with
// `transpose`, and bias (O); attributes: bias, transpose.
#include "onednn_util.h"

namespace engine {

class InnerProduct : public Op {
public:
    explicit InnerProduct(OpSpec spec) : Op(std::move(spec)) {
        bias_ = spec_.attributes.flag("bias");
        const auto type = input(0)->layout.get_data_type();
        const Dims& in = input(0)->layout.get_dims();
        const Dims& out = spec_.output_shapes[0];
        Dims weights = in;
        weights[0] = out[1];
        src_ = any_layout(in, type);
        dst_ = plain_layout(out, type);
        weights_ = any_layout(weights, type);
        if (bias_) bias_layout_ = any_layout({out[1]}, type);
        if (spec_.attributes.flag("transpose")) {
            param(0)->plain_override = transposed(weights, type);
            if (param_gradient(0)) param(0)->diff->plain_override = param(0)->plain_override;
        }

        forward_pd pd = make_forward();
        if (pd.src_desc() != input(0)->layout) keep_source(pd);
        build_forward(pd);
        if (param_gradient(0) || (bias_ && param_gradient(1))) build_backward_weights(pd);
        if (input_gradient(0)) build_backward_data(pd);
        touch(Pass::forward, {input(0), outputs_[0]});
    }

private:
    using forward_pd = dnnl::inner_product_forward::primitive_desc;

    // Rows of the file's array are inputs, columns outputs.
    static Layout transposed(const Dims& weights, memory::data_type type) {
        Dims strides(weights.size());
        int64_t stride = weights[0];
        for (size_t i = weights.size() - 1; i > 0; i--) {
            strides[i] = stride;
            stride *= weights[i];
        }
        strides[0] = 1;
        return Layout(weights, type, strides);
    }

    forward_pd make_forward() const {
        const auto kind = forward_kind(spec_);
        if (bias_) return forward_pd(cpu(), kind, src_, weights_, bias_layout_, dst_, user_scratchpad());
        return forward_pd(cpu(), kind, src_, weights_, dst_, user_scratchpad());
    }

    // Weights can follow the layout of x for free, unless only the reference kernel would take it.
    void keep_source(forward_pd& pd) {
        const Layout preferred = src_;
        src_ = input(0)->layout;
        try {
            const forward_pd kept = make_forward();
            if (std::string(kept.impl_info_str()).find("ref") == std::string::npos) {
                pd = kept;
                return;
            }
        } catch (const dnnl::error&) {
            // no kernel takes this layout: x is reordered instead
        }
        src_ = preferred;
    }

    void build_forward(const forward_pd& pd) {
        const memory src = reading(input(0), pd.src_desc(), forward_calls_);
        const memory weights = reading_param(0, pd.weights_desc(), forward_calls_);
        output(0, pd.dst_desc());
        Call call{dnnl::inner_product_forward(pd),
                  {{DNNL_ARG_SRC, src}, {DNNL_ARG_WEIGHTS, weights}, {DNNL_ARG_DST, outputs_[0]->memory}}};
        if (bias_) call.args[DNNL_ARG_BIAS] = reading_param(1, pd.bias_desc(), forward_calls_);
        call.args[DNNL_ARG_SCRATCHPAD] = scratch(pd.scratchpad_desc());
        forward_calls_.push_back(call);
        implementation_ = pd.impl_info_str();
    }

    void build_backward_weights(const forward_pd& hint) {
        using backward_pd = dnnl::inner_product_backward_weights::primitive_desc;
        const backward_pd pd = bias_ ? backward_pd(cpu(), src_, weights_, bias_layout_, dst_, hint, user_scratchpad())
                                     : backward_pd(cpu(), src_, weights_, dst_, hint, user_scratchpad());
        fresh_scratch();
        const memory src = reading(input(0), pd.src_desc(), backward_calls_);
        const memory diff_dst = reading(outputs_[0]->diff, pd.diff_dst_desc(), backward_calls_);
        const Target weights = writing_gradient(0, pd.diff_weights_desc());
        Call call{dnnl::inner_product_backward_weights(pd),
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
        const dnnl::inner_product_backward_data::primitive_desc pd(cpu(), src_, weights_, dst_, hint, user_scratchpad());
        fresh_scratch();
        const memory diff_dst = reading(outputs_[0]->diff, pd.diff_dst_desc(), backward_calls_);
        const memory weights = reading_param(0, pd.weights_desc(), backward_calls_);
        const Target diff_src = writing(input(0)->diff, pd.diff_src_desc());
        Call call{dnnl::inner_product_backward_data(pd),
                  {{DNNL_ARG_DIFF_DST, diff_dst}, {DNNL_ARG_WEIGHTS, weights}, {DNNL_ARG_DIFF_SRC, diff_src.memory}}};
        call.args[DNNL_ARG_SCRATCHPAD] = scratch(pd.scratchpad_desc());
        backward_calls_.push_back(call);
        finish(diff_src, backward_calls_);
        touch(Pass::backward, {outputs_[0]->diff, input(0)->diff});
    }

    bool bias_;
    Layout src_, dst_, weights_, bias_layout_;
};

static const RegisterOp<InnerProduct> registered("InnerProduct");

}  // namespace engine
