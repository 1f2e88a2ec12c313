// Convolution in any number of spatial dimensions, with groups, dilation and an optional bias.
// inputs: x (N, C, ...); params: weights (O, C/group, ...), bias (O); attributes: kernel, stride, pad, dilation (one
// each per spatial axis), group, bias.
#include "weighted.h"

namespace engine {

class Convolution : public Weighted {
public:
    explicit Convolution(OpSpec spec) : Weighted(std::move(spec)) {
        const auto& attributes = spec_.attributes;
        stride_ = attributes.integers("stride");
        pad_ = attributes.integers("pad");
        dilation_ = attributes.integers("dilation");
        for (auto& d : dilation_) d -= 1;  // oneDNN counts the holes
        const int64_t group = attributes.integer("group", 1);
        const Dims& out = spec_.output_shapes[0];
        const auto type = input(0)->layout.get_data_type();
        Dims weights{out[1] / group, input(0)->shape[1] / group};
        if (group > 1) weights.insert(weights.begin(), group);
        for (int64_t k : attributes.integers("kernel")) weights.push_back(k);
        src_ = any_layout(input(0)->shape, type);
        dst_ = any_layout(out, type);
        weights_ = any_layout(weights, type);
        diff_weights_ = any_layout(weights, memory::data_type::f32);
        if (bias_) bias_layout_ = any_layout({out[1]}, memory::data_type::f32);

        const auto forward = make_forward();
        if (type != memory::data_type::f32 && weights_learn())
            decide_weights(make_backward_weights(forward).diff_weights_desc());
        add_forward<dnnl::convolution_forward>(forward);
        if (weights_learn()) add_backward_weights<dnnl::convolution_backward_weights>(make_backward_weights(forward));
        if (input_gradient(0)) add_backward_data<dnnl::convolution_backward_data>(make_backward_data(forward));
    }

private:
    using forward_pd = dnnl::convolution_forward::primitive_desc;
    using weights_pd = dnnl::convolution_backward_weights::primitive_desc;
    using data_pd = dnnl::convolution_backward_data::primitive_desc;
    static constexpr auto how = algorithm::convolution_direct;

    forward_pd make_forward() const {
        const auto kind = forward_kind(spec_);
        if (bias_)
            return forward_pd(cpu(), kind, how, src_, weights_, bias_layout_, dst_, stride_, dilation_, pad_, pad_,
                              user_scratchpad());
        return forward_pd(cpu(), kind, how, src_, weights_, dst_, stride_, dilation_, pad_, pad_, user_scratchpad());
    }

    weights_pd make_backward_weights(const forward_pd& hint) const {
        if (bias_)
            return weights_pd(cpu(), how, src_, diff_weights_, bias_layout_, dst_, stride_, dilation_, pad_, pad_, hint,
                              user_scratchpad());
        return weights_pd(cpu(), how, src_, diff_weights_, dst_, stride_, dilation_, pad_, pad_, hint,
                          user_scratchpad());
    }

    data_pd make_backward_data(const forward_pd& hint) const {
        return data_pd(cpu(), how, src_, weights_, dst_, stride_, dilation_, pad_, pad_, hint, user_scratchpad());
    }

    Dims stride_, pad_, dilation_;
};

static const RegisterOp<Convolution> registered("Convolution");

}  // namespace engine
