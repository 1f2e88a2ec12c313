// Computes a deconvolution: what the backward of a convolution does to its gradient, and an optional bias. Weights have
// the shape of that convolution's, so that both can share one blob.
// inputs: x (N, C, ...), float32 or bf16; outputs: y (N, O, ...), of x's type.
// params: weights (C, O/group, ...), bias (O). attributes: kernel, stride, pad, dilation (one for each spatial axis),
// group, bias.

#include "kernels/bf16.h"
#include "ops/common/channel_layout.h"
#include "ops/common/onednn_util.h"
#include "ops/common/parts.h"

namespace engine {
namespace {

class Deconvolution : public Op {
public:
    explicit Deconvolution(OpSpec spec) : Op(std::move(spec)), bias_(spec_.attributes.flag("bias")) {
        const auto& attributes = spec_.attributes;
        stride_ = attributes.integers("stride");
        pad_ = attributes.integers("pad");
        dilation_ = attributes.integers("dilation");
        for (auto& d : dilation_) d -= 1;  // oneDNN's dilation is 0 without holes
        const int64_t group = attributes.integer("group");
        const Dims &in = input(0)->shape, &out = spec_.output_shapes[0];
        const auto type = input(0)->layout.get_data_type();
        Dims weights{in[1] / group, out[1] / group};
        if (group > 1) weights.insert(weights.begin(), group);
        for (int64_t k : attributes.integers("kernel")) weights.push_back(k);
        x_ = any_layout(in, type);
        y_ = any_layout(out, type);
        weights_ = any_layout(weights, type);
        diff_weights_ = any_layout(weights, memory::data_type::f32);

        const gather_pd gather(cpu(), prop_kind::forward_training, how, y_, weights_, x_, stride_, dilation_, pad_,
                               pad_, user_scratchpad());
        const weights_pd learn(cpu(), how, y_, diff_weights_, x_, stride_, dilation_, pad_, pad_, gather,
                               user_scratchpad());
        // In bf16 the kernels read a copy in any case, so the parameter, float32, gets the layout of its gradient.
        if (type != memory::data_type::f32 && param_gradient(0) && !param(0)->decided())
            param(0)->decide(learn.diff_weights_desc());
        add_forward(depthwise_first(group > 1 && in[1] == group && out[1] == group, [&] {
            return scatter_pd(cpu(), how, y_, weights_, x_, stride_, dilation_, pad_, pad_, gather, user_scratchpad());
        }));
        if (param_gradient(0)) add_backward_weights(learn);
        if (input_gradient(0)) add_backward_data(gather);
    }

    void backward(const dnnl::stream& stream) override {
        if (bias_ && param_gradient(1)) {
            if (outputs_[0]->is_bf16())
                sum_bias<bf16>();
            else
                sum_bias<float>();
        }
        Op::backward(stream);
    }

private:
    // These names tell what the primitives do here: forward scatters every pixel of x, x's gradient gathers them.
    using scatter_pd = dnnl::convolution_backward_data::primitive_desc;
    using gather_pd = dnnl::convolution_forward::primitive_desc;
    using weights_pd = dnnl::convolution_backward_weights::primitive_desc;
    static constexpr auto how = algorithm::convolution_direct;

    void add_forward(const scatter_pd& pd) {
        const memory x = reading(input(0), pd.diff_dst_desc(), forward_calls_);
        const memory weights = reading_param(0, pd.weights_desc(), forward_calls_);
        const TensorPtr y = output(0, pd.diff_src_desc());
        forward_calls_.push_back({dnnl::convolution_backward_data(pd),
                                  {{DNNL_ARG_DIFF_DST, x},
                                   {DNNL_ARG_WEIGHTS, weights},
                                   {DNNL_ARG_DIFF_SRC, y->memory},
                                   {DNNL_ARG_SCRATCHPAD, scratch(pd.scratchpad_desc())}}});
        implementation_ = pd.impl_info_str();
        touch(Pass::forward, {input(0), y});
        if (bias_) add_bias(y);
    }

    void add_bias(const TensorPtr& y) {
        plain_param(1);
        Dims dims(y->shape.size(), 1);
        dims[1] = y->shape[1];
        // The bias has blocks if y has: else oneDNN has only a reference kernel.
        const Layout broadcast = layout_like(y->layout, dims, memory::data_type::f32);
        const dnnl::binary::primitive_desc pd(cpu(), algorithm::binary_add, y->layout, broadcast, y->layout,
                                              user_scratchpad());
        fresh_scratch();
        const memory bias = reading(param(1), plain_layout(dims), broadcast, forward_calls_);
        forward_calls_.push_back({dnnl::binary(pd),
                                  {{DNNL_ARG_SRC_0, y->memory},
                                   {DNNL_ARG_SRC_1, bias},
                                   {DNNL_ARG_DST, y->memory},
                                   {DNNL_ARG_SCRATCHPAD, scratch(pd.scratchpad_desc())}}});
        if (!param_gradient(1)) return;
        rows_ = known_rows(y->layout);
        sums_.resize(rows_.outer * rows_.padded_channels());
        touch(Pass::backward, y->diff);
    }

    void add_backward_weights(const weights_pd& pd) {
        const TensorPtr& given = outputs_[0]->diff;
        fresh_scratch();
        const memory y = reading(given, pd.src_desc(), backward_calls_);
        const memory x = reading(input(0), pd.diff_dst_desc(), backward_calls_);
        const Target weights = writing_gradient(0, pd.diff_weights_desc());
        backward_calls_.push_back({dnnl::convolution_backward_weights(pd),
                                   {{DNNL_ARG_SRC, y},
                                    {DNNL_ARG_DIFF_DST, x},
                                    {DNNL_ARG_DIFF_WEIGHTS, weights.memory},
                                    {DNNL_ARG_SCRATCHPAD, scratch(pd.scratchpad_desc())}}});
        finish(weights, backward_calls_);
        touch(Pass::backward, {given, input(0)});
    }

    void add_backward_data(const gather_pd& pd) {
        const TensorPtr &given = outputs_[0]->diff, &wanted = input(0)->diff;
        fresh_scratch();
        const memory y = reading(given, pd.src_desc(), backward_calls_);
        const memory weights = reading_param(0, pd.weights_desc(), backward_calls_);
        const Target x = writing(wanted, pd.dst_desc());
        backward_calls_.push_back({dnnl::convolution_forward(pd),
                                   {{DNNL_ARG_SRC, y},
                                    {DNNL_ARG_WEIGHTS, weights},
                                    {DNNL_ARG_DST, x.memory},
                                    {DNNL_ARG_SCRATCHPAD, scratch(pd.scratchpad_desc())}}});
        finish(x, backward_calls_);
        touch(Pass::backward, {given, wanted});
    }

    // Computes the gradient of the bias, in an order of sums that does not depend on the number of threads.
    template <typename T>
    void sum_bias() {
        const T* const given = address<T>(outputs_[0]->diff);
        const int64_t blocks = rows_.blocks(), padded = rows_.padded_channels();
#pragma omp parallel for schedule(static) if (!rows_.small())
        for (int64_t panel = 0; panel < rows_.panels(); panel++) {
            const T* const start = given + rows_.offset(panel / blocks, panel % blocks);
            double* const sums = &sums_[panel * rows_.lanes];
            std::fill_n(sums, rows_.lanes, 0.);
            for (int64_t i = 0; i < rows_.inner; i++)
                for (int64_t lane = 0; lane < rows_.lanes; lane++)
                    sums[lane] += number(start[i * rows_.inner_stride + lane]);
        }
        const TensorPtr& diff = param(1)->diff;
        for (int64_t channel = 0; channel < rows_.channels; channel++) {
            double total = diff->accumulate ? diff->data()[channel] : 0;
            for (int64_t n = 0; n < rows_.outer; n++) total += sums_[n * padded + channel];
            diff->data()[channel] = float(total);
        }
    }

    bool bias_;
    Dims stride_, pad_, dilation_;
    Layout x_, y_, weights_, diff_weights_;  // "any": the kernel chooses
    ChannelRows rows_{};
    std::vector<double> sums_;  // (N, padded channels), of the top's gradient
};

static const RegisterOp<Deconvolution> registered("Deconvolution");

}  // namespace
}  // namespace engine
