// Convolution in any number of spatial dimensions, with groups, dilation and an optional bias.
// inputs: x (N, C, ...); params: weights (O, C/group, ...), bias (O); attributes: kernel, stride, pad, dilation (one
// each per spatial axis), group, bias.
#include <cstring>

#include "../bf16.h"
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
        if (biased()) bias_layout_ = any_layout({out[1]}, memory::data_type::f32);

        const auto forward = make_forward();
        const bool by_matmul = weights_learn() && suits_matmul(forward, attributes.integers("kernel"), group);
        if (by_matmul)
            decide_weights(columns_layout());
        else if (type != memory::data_type::f32 && weights_learn())
            decide_weights(make_backward_weights(forward).diff_weights_desc());
        add_forward<dnnl::convolution_forward>(forward);
        if (by_matmul && param(0)->layout == columns_layout())
            add_matmul();
        else if (weights_learn())
            add_backward_weights<dnnl::convolution_backward_weights>(make_backward_weights(forward));
        if (input_gradient(0)) add_backward_data<dnnl::convolution_backward_data>(make_backward_data(forward));
    }

    void backward(const dnnl::stream& stream) override {
        if (columns_) gather_columns();
        Op::backward(stream);
    }

private:
    using forward_pd = dnnl::convolution_forward::primitive_desc;
    using weights_pd = dnnl::convolution_backward_weights::primitive_desc;
    using data_pd = dnnl::convolution_backward_data::primitive_desc;
    static constexpr auto how = algorithm::convolution_direct;

    forward_pd make_forward() const {
        const auto kind =
            prop_kind::forward_training;  // the kernels offered for inference are not faster, on the whole
        if (biased())
            return forward_pd(cpu(), kind, how, src_, weights_, bias_layout_, dst_, stride_, dilation_, pad_, pad_,
                              forward_attr());
        return forward_pd(cpu(), kind, how, src_, weights_, dst_, stride_, dilation_, pad_, pad_, forward_attr());
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

    // oneDNN's bf16 kernels for the gradient of weights spend most of their time on transposes where planes are small
    // or kernels are of one pixel: there one product of matrices, (O, pixels) times (pixels, columns), takes half as
    // long, including the time to gather the columns (what each output pixel sees) of larger kernels.
    bool suits_matmul(const forward_pd& pd, const Dims& kernel, int64_t group) {
        const Dims& in = input(0)->shape;
        const Dims& out = spec_.output_shapes[0];
        if (input(0)->layout.get_data_type() == memory::data_type::f32 || group != 1 || bias_ || in.size() != 4)
            return false;
        if (!channels_last(input(0)->layout) || pd.src_desc() != input(0)->layout || !channels_last(pd.dst_desc()))
            return false;
        kernel_ = kernel;
        if (one_pixel()) return true;
        constexpr int64_t small_plane = 64;
        return out[2] * out[3] <= small_plane;
    }

    bool one_pixel() const { return count_of(kernel_) == 1 && count_of(stride_) == 1 && pad_[0] + pad_[1] == 0; }

    static bool channels_last(const Layout& layout) {
        const Dims dims = layout.get_dims();
        return layout == Layout(dims, layout.get_data_type(), memory::format_tag::nhwc);
    }

    // Of the weights: a row for every output, and in it the channels side by side, as in the columns.
    Layout columns_layout() const {
        const Dims dims{spec_.output_shapes[0][1], input(0)->shape[1], kernel_[0], kernel_[1]};
        if (count_of(kernel_) == 1) return plain_layout(dims);
        return Layout(dims, memory::data_type::f32, memory::format_tag::ohwi);
    }

    void add_matmul() {
        const Dims& in = input(0)->shape;
        const Dims& out = spec_.output_shapes[0];
        const int64_t pixels = out[0] * out[2] * out[3], width = in[1] * count_of(kernel_);
        const auto type = input(0)->layout.get_data_type();
        const Layout given({out[1], pixels}, type, Dims{1, out[1]}), seen = plain_layout({pixels, width}, type),
                                                                     wanted = plain_layout({out[1], width});
        const TensorPtr& diff = param(0)->diff;
        primitive_attr attr = user_scratchpad();
        if (diff->accumulate) {
            dnnl::post_ops post;
            post.append_sum(1.f);
            attr.set_post_ops(post);
        }
        fresh_scratch();
        if (!one_pixel()) columns_ = scratch(seen);
        const dnnl::matmul::primitive_desc pd(cpu(), given, seen, wanted, attr);
        backward_calls_.push_back({dnnl::matmul(pd),
                                   {{DNNL_ARG_SRC, gradient()->as(given)},
                                    {DNNL_ARG_WEIGHTS, columns_ ? columns_ : input(0)->as(seen)},
                                    {DNNL_ARG_DST, diff->as(wanted)},
                                    {DNNL_ARG_SCRATCHPAD, scratch(pd.scratchpad_desc())}}});
        touch(Pass::backward, {input(0), gradient()});
    }

    void gather_columns() const {
        const Dims& in = input(0)->shape;
        const Dims& out = spec_.output_shapes[0];
        const char* const x = static_cast<const char*>(input(0)->buffer->address());
        char* const columns = static_cast<char*>(columns_.get_data_handle());
        const int64_t bytes = in[1] * int64_t(sizeof(bf16)), row_bytes = bytes * count_of(kernel_);
#pragma omp parallel for schedule(static) collapse(2)
        for (int64_t n = 0; n < out[0]; n++) {
            for (int64_t h = 0; h < out[2]; h++) {
                char* into = columns + (n * out[2] + h) * out[3] * row_bytes;
                for (int64_t w = 0; w < out[3]; w++) {
                    for (int64_t i = 0; i < kernel_[0]; i++) {
                        const int64_t y = h * stride_[0] - pad_[0] + i * (dilation_[0] + 1);
                        for (int64_t j = 0; j < kernel_[1]; j++, into += bytes) {
                            const int64_t z = w * stride_[1] - pad_[1] + j * (dilation_[1] + 1);
                            if (y < 0 || y >= in[2] || z < 0 || z >= in[3])
                                std::memset(into, 0, bytes);
                            else
                                std::memcpy(into, x + ((n * in[2] + y) * in[3] + z) * bytes, bytes);
                        }
                    }
                }
            }
        }
    }

    Dims kernel_, stride_, pad_, dilation_;
    memory columns_;  // what each output pixel sees, for the gradient of the weights as a product of matrices
};

static const RegisterOp<Convolution> registered("Convolution");

}  // namespace engine
