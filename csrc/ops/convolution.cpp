// Computes a convolution over any number of spatial axes, with groups, dilation and an optional bias.
// inputs: x (N, C, ...), float32 or bf16; outputs: y (N, O, ...).
// params: weights (O, C/group, ...), bias (O). attributes: kernel, stride, pad, dilation (one for each spatial axis),
// group; for others, and what the graph may have fused, see weighted.h. If no kernel is named, AMX computes the
// gradient of weights in bf16 if it can.
#include <omp.h>

#include <algorithm>
#include <numeric>
#include <optional>

#include "kernels/amx_gradient.h"
#include "kernels/isa.h"
#include "kernels/pair_gradient.h"
#include "ops/common/winograd_passes.h"

namespace engine {
namespace {

class Convolution : public WinogradPasses {
public:
    explicit Convolution(OpSpec spec) : WinogradPasses(std::move(spec)) {
        const auto& attributes = spec_.attributes;
        stride_ = attributes.integers("stride");
        pads_ = attributes.integers("pad");
        dilation_ = attributes.integers("dilation");
        for (auto& d : dilation_) d -= 1;  // oneDNN's dilation is 0 without holes
        const Dims& out = spec_.output_shapes[0];
        if (biased()) bias_layout_ = any_layout({out[1]}, memory::data_type::f32);

        std::optional<forward_pd> forward;
        if (!by_winograd("forward")) forward = make_forward("forward");
        const bool by_amx = forward && param_gradient(0) && amx_fits(*forward);
        const bool by_pairs = !by_amx && param_gradient(0) && pairs_fit(forward);
        if (weights_learn()) lay_out_weights(by_amx, by_pairs);
        forward ? add_forward<dnnl::convolution_forward>(*forward) : add_winograd_forward();
        if (by_amx && param(0)->layout == amx_layout() && (!bias_ || is_plain(param(1)->layout))) {
            add_amx_gradient();
        } else if (by_pairs) {
            add_pair_gradient();
        } else {
            if (kernel("weight_gradient") == "amx" || kernel("weight_gradient") == "pairs")
                without_kernel("weight_gradient");
            close_activation();
            if (weights_learn()) add_weights_gradient();
        }
        if (!input_gradient(0)) return;
        if (by_winograd("data_gradient"))
            add_winograd_data();
        else
            add_backward_data<dnnl::convolution_backward_data>(make_backward_data(make_forward("data_gradient")));
    }

private:
    using forward_pd = dnnl::convolution_forward::primitive_desc;
    using weights_pd = dnnl::convolution_backward_weights::primitive_desc;
    using data_pd = dnnl::convolution_backward_data::primitive_desc;
    static constexpr auto how = algorithm::convolution_direct;

    // Tells whether a pass runs by Winograd's algorithm. Throws std::invalid_argument if it must but cannot.
    bool by_winograd(const char* pass) const {
        if (kernel(pass) != "winograd") return false;
        if (!winograd_fits()) without_kernel(pass);
        return winograd_fits();
    }

    // Gives the weights the layout that the kernel of their gradient writes. If that is oneDNN's, and all is float32,
    // forward decides, which reads them first.
    void lay_out_weights(bool by_amx, bool by_pairs) {
        if (by_amx)
            decide_weights(amx_layout());
        else if (by_pairs || by_winograd("weight_gradient"))
            decide_weights(blocked_weights());
        else if (arithmetic("forward") != memory::data_type::f32 ||
                 arithmetic("weight_gradient") != arithmetic("forward"))
            decide_weights(make_backward_weights(make_forward("weight_gradient")).diff_weights_desc());
    }

    void add_weights_gradient() {
        if (by_winograd("weight_gradient")) return add_winograd_weights();
        add_backward_weights<dnnl::convolution_backward_weights>(
            make_backward_weights(make_forward("weight_gradient")));
    }

    // Returns oneDNN's forward in the precision of a pass. Sets src_, dst_ and the other layouts, with which the
    // primitive of that pass is made.
    forward_pd make_forward(const char* pass) {
        const int64_t group = spec_.attributes.integer("group", 1);
        const Dims &in = input(0)->shape, &out = spec_.output_shapes[0];
        const auto type = arithmetic(pass);
        Dims weights{out[1] / group, in[1] / group};
        if (group > 1) weights.insert(weights.begin(), group);
        for (int64_t k : spec_.attributes.integers("kernel")) weights.push_back(k);
        const bool innermost = (type == memory::data_type::f32 && wastes_lanes()) || narrow_groups(type);
        src_ = innermost ? Layout(in, type, memory::format_tag::nhwc) : any_layout(in, type);
        dst_ = innermost ? Layout(out, type, memory::format_tag::nhwc) : any_layout(out, type);
        weights_ = any_layout(weights, type);
        diff_weights_ = any_layout(weights, memory::data_type::f32);
        const auto kind =
            prop_kind::forward_training;  // the kernels offered for inference are not faster, on the whole
        if (biased())
            return forward_pd(cpu(), kind, how, src_, weights_, bias_layout_, dst_, stride_, dilation_, pads_, pads_,
                              forward_attr());
        return forward_pd(cpu(), kind, how, src_, weights_, dst_, stride_, dilation_, pads_, pads_, forward_attr());
    }

    weights_pd make_backward_weights(const forward_pd& hint) const {
        if (bias_)
            return weights_pd(cpu(), how, src_, diff_weights_, bias_layout_, dst_, stride_, dilation_, pads_, pads_,
                              hint, user_scratchpad());
        return weights_pd(cpu(), how, src_, diff_weights_, dst_, stride_, dilation_, pads_, pads_, hint,
                          user_scratchpad());
    }

    data_pd make_backward_data(const forward_pd& hint) const {
        const int64_t group = spec_.attributes.integer("group", 1);
        return depthwise_first(group > 1 && input(0)->shape[1] == group && spec_.output_shapes[0][1] == group, [&] {
            return data_pd(cpu(), how, src_, weights_, dst_, stride_, dilation_, pads_, pads_, hint, user_scratchpad());
        });
    }

    // Tells whether blocks of 16 channels would waste a third or more of the work on padding, in kernels of 5 x 5 and
    // more. There oneDNN is faster with channels last, by more than the reorders take. (With 3 x 3 or holes it is not.)
    bool wastes_lanes() const {
        const Dims &in = input(0)->shape, &out = spec_.output_shapes[0];
        if (in.size() != 4 || in[1] < 16 || !may_use(Isa::avx512) || adds_ ||
            spec_.attributes.integer("group", 1) != 1 || count_of(spec_.attributes.integers("kernel")) < 25 ||
            std::any_of(dilation_.begin(), dilation_.end(), [](int64_t holes) { return holes > 0; }))
            return false;
        for (const char* pass : {"forward", "data_gradient", "weight_gradient"})
            if (kernel(pass) == "winograd") return false;
        const auto padded = [](int64_t channels) { return (channels + 15) / 16 * 16; };
        return 2 * padded(in[1]) * padded(out[1]) > 3 * in[1] * out[1];
    }

    // Tells whether oneDNN would take blocks of 4 channels, or of 8, because groups have no more. Those who read such a
    // blob are slow with 16 lanes, and so is the convolution itself, but for groups of just 8 in fp32.
    bool narrow_groups(memory::data_type type) const {
        const Dims &in = input(0)->shape, &out = spec_.output_shapes[0];
        const int64_t group = spec_.attributes.integer("group", 1);
        if (in.size() != 4 || group == 1 || !may_use(Isa::avx512)) return false;
        const int64_t block = std::gcd(16, std::gcd(in[1] / group, out[1] / group));
        return block == 4 || (block == 8 && (type != memory::data_type::f32 || std::min(in[1], out[1]) > 8 * group));
    }

    // Returns the shape of a convolution over two axes.
    ConvolutionShape shape() const {
        const Dims &in = input(0)->shape, &out = spec_.output_shapes[0];
        const Dims kernel = spec_.attributes.integers("kernel");
        ConvolutionShape result{in[0], in[1], out[1], {}, {}, {}, {}, {}, {}};
        for (int axis : {0, 1}) {
            result.in[axis] = in[axis + 2];
            result.out[axis] = out[axis + 2];
            result.kernel[axis] = kernel[axis];
            result.stride[axis] = stride_[axis];
            result.pad[axis] = pads_[axis];
            result.step[axis] = dilation_[axis] + 1;
        }
        return result;
    }

    // Tells whether the blobs are images in bf16, without groups, as our own kernels for the gradient of weights want.
    bool suits_own() const {
        return input(0)->shape.size() == 4 && input(0)->is_bf16() && spec_.attributes.integer("group", 1) == 1;
    }

    bool amx_fits(const forward_pd& pd) const {
        const std::string asked = kernel("weight_gradient");
        return (asked.empty() || asked == "amx") && suits_own() && AmxGradient::available() &&
               channels_last(input(0)->layout) && pd.src_desc() == input(0)->layout && channels_last(pd.dst_desc()) &&
               AmxGradient::suits(shape());
    }

    bool pairs_fit(const std::optional<forward_pd>& forward) const {
        return kernel("weight_gradient") == "pairs" && suits_own() && PairGradient::available() &&
               input(0)->layout == blocked(input(0)->shape) &&
               (!forward || forward->dst_desc() == blocked(spec_.output_shapes[0])) && PairGradient::suits(shape());
    }

    static bool channels_last(const Layout& layout) {
        const Dims dims = layout.get_dims();
        return layout == Layout(dims, layout.get_data_type(), memory::format_tag::nhwc);
    }

    // Returns the layout of weights for AMX: a row for every output, in which channels lie side by side.
    Layout amx_layout() const {
        const Dims kernel = spec_.attributes.integers("kernel");
        const Dims dims{spec_.output_shapes[0][1], input(0)->shape[1], kernel[0], kernel[1]};
        if (count_of(kernel) == 1) return plain_layout(dims);
        return Layout(dims, memory::data_type::f32, memory::format_tag::ohwi);
    }

    // Prepares the top's gradient for one of our own kernels, which applies a ReLU's own by itself; other activations
    // are applied before it. Returns a function that tells where the gradient is.
    std::function<ResultGradient()> closing() {
        const bool closes = leaves_activation() && activation_->is_relu();
        if (closes)
            make_passed();
        else
            close_activation();
        const TensorPtr dy = gradient(), given = closes ? outputs_[0]->diff : dy,
                        result = closes ? outputs_[0] : nullptr;
        return [=]() -> ResultGradient {
            return {address<bf16>(given), result ? address<bf16>(result) : nullptr, address<bf16>(dy)};
        };
    }

    void add_own_gradient(std::function<void()> run) {
        add_own(backward_calls_, std::move(run));
        touch(Pass::backward, {input(0), gradient()});
    }

    void add_amx_gradient() {
        const auto dy = closing();
        const AmxGradient job(shape(), omp_get_max_threads());
        fresh_scratch();
        const memory room = scratch(plain_layout({job.scratch_bytes()}, memory::data_type::u8));
        const TensorPtr &x = input(0), &weights = param(0)->diff;
        const TensorPtr bias = bias_ && param_gradient(1) ? param(1)->diff : nullptr;
        add_own_gradient([=] {
            job.run(address<bf16>(x), dy(), {weights->data(), weights->accumulate},
                    {bias ? bias->data() : nullptr, bias && bias->accumulate}, address<char>(room));
        });
    }

    void add_pair_gradient() {
        const auto dy = closing();
        const PairGradient job(shape(), omp_get_max_threads());
        fresh_scratch();
        const memory room = scratch(plain_layout({job.scratch_bytes()}, memory::data_type::u8));
        const Target weights = writing_gradient(0, blocked_weights());
        const Target bias = bias_ ? writing_gradient(1, plain_layout({spec_.output_shapes[0][1]})) : Target{};
        const TensorPtr& x = input(0);
        add_own_gradient([=] {
            job.run(address<bf16>(x), dy(), address<float>(weights.memory),
                    bias_ ? address<float>(bias.memory) : nullptr, address<char>(room));
        });
        finish(weights, backward_calls_);
        finish(bias, backward_calls_);
    }

    Dims stride_, pads_, dilation_;
};

static const RegisterOp<Convolution> registered("Convolution");

}  // namespace
}  // namespace engine
