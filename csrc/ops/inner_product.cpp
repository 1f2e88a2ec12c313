// y = x W' + b, over everything from the given axis on.
// inputs: x (N, ...), where the layer has merged the axes before its own into N; params: weights (O, K), or (K, O) with
// `transpose`, and bias (O); attributes: bias, transpose.
#include "parts.h"
#include "weighted.h"

namespace engine {

class InnerProduct : public Weighted {
public:
    explicit InnerProduct(OpSpec spec) : Weighted(std::move(spec)) {
        const auto type = input(0)->layout.get_data_type();
        const Dims& in = input(0)->layout.get_dims();
        const Dims& out = spec_.output_shapes[0];
        Dims weights = in;
        weights[0] = out[1];
        src_ = any_layout(in, type);
        dst_ = plain_layout(out, type);
        weights_ = any_layout(weights, type);
        diff_weights_ = any_layout(weights, memory::data_type::f32);
        if (bias_) bias_layout_ = any_layout({out[1]}, memory::data_type::f32);
        if (spec_.attributes.flag("transpose")) {
            param(0)->plain_override = transposed(weights);
            if (param_gradient(0)) param(0)->diff->plain_override = param(0)->plain_override;
        }

        forward_pd forward = make_forward();
        if (forward.src_desc() != input(0)->layout) keep_source(forward);
        if (weights_learn()) keep_weights(forward);
        add_forward<dnnl::inner_product_forward>(forward);
        if (weights_learn()) add_backward_weights<dnnl::inner_product_backward_weights>(make_backward_weights(forward));
        if (input_gradient(0)) add_backward_data<dnnl::inner_product_backward_data>(make_backward_data(forward));
    }

private:
    using forward_pd = dnnl::inner_product_forward::primitive_desc;
    using weights_pd = dnnl::inner_product_backward_weights::primitive_desc;
    using data_pd = dnnl::inner_product_backward_data::primitive_desc;

    // Rows of the file's array are inputs, columns outputs.
    static Layout transposed(const Dims& weights) {
        Dims strides(weights.size());
        int64_t stride = weights[0];
        for (size_t i = weights.size() - 1; i > 0; i--) {
            strides[i] = stride;
            stride *= weights[i];
        }
        strides[0] = 1;
        return Layout(weights, memory::data_type::f32, strides);
    }

    forward_pd make_forward() const {
        const auto kind = forward_kind(spec_);
        if (bias_) return forward_pd(cpu(), kind, src_, weights_, bias_layout_, dst_, forward_attr());
        return forward_pd(cpu(), kind, src_, weights_, dst_, forward_attr());
    }

    weights_pd make_backward_weights(const forward_pd& hint) const {
        if (bias_) return weights_pd(cpu(), src_, diff_weights_, bias_layout_, dst_, hint, user_scratchpad());
        return weights_pd(cpu(), src_, diff_weights_, dst_, hint, user_scratchpad());
    }

    data_pd make_backward_data(const forward_pd& hint) const {
        return data_pd(cpu(), src_, weights_, dst_, hint, user_scratchpad());
    }

    // Weights as their gradient is laid out, so that neither is reordered: an inner product over images has more of
    // them than of anything else. Unless only the reference kernel would take them so.
    void keep_weights(forward_pd& pd) {
        const Layout gradient = make_backward_weights(pd).diff_weights_desc();
        const Layout preferred = weights_;
        weights_ = layout_like(gradient, gradient.get_dims(), preferred.get_data_type());
        const bool same = preferred.get_data_type() == memory::data_type::f32 || gradient.get_inner_blks().empty();
        if (preferred.get_data_type() == memory::data_type::f32) weights_ = gradient;
        try {
            const forward_pd kept = make_forward();
            if (same && std::string(kept.impl_info_str()).find("ref") == std::string::npos) {
                pd = kept;
                decide_weights(gradient);
                return;
            }
        } catch (const dnnl::error&) {
            // no kernel takes this layout: weights are reordered instead
        }
        weights_ = preferred;
        if (preferred.get_data_type() != memory::data_type::f32) decide_weights(gradient);
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
};

static const RegisterOp<InnerProduct> registered("InnerProduct");

}  // namespace engine
