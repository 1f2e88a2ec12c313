// The base of Convolution and InnerProduct: a source, weights, an optional bias, and a primitive for each of three
// passes. The graph may have fused into it the addition of a second input, an activation and, if parameters change
// rarely (attribute `constant`), a normalisation by running statistics.
// inputs: x, float32 or bf16, and with `adds` what is added to the result, as the top; outputs: y, of x's type, or
// float32 with `wide`.
// params: weights, bias, then with `norm` those of BatchNorm: mean sum, variance sum, factor, and scale and shift if
// the attributes of these names are set. attributes: bias, adds, activation (with alpha, beta), constant, norm (with
// eps), wide (InnerProduct alone: a float32 top of a bf16 bottom). forward, data_gradient and weight_gradient name the
// kernels of these passes: "direct" (oneDNN's), "fp32" (oneDNN's in float32, for bf16 blobs), "winograd", "amx" or
// "pairs", if the op has them. Without a name, or if the kernel cannot be used here, the op chooses; with `exact`, by
// which somebody measures a kernel, it throws instead.
#pragma once

#include <cmath>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include "ops/common/onednn_util.h"
#include "ops/common/parts.h"
#include "ops/common/relu_slope.h"

namespace engine {

class Weighted : public Op {
    struct Activation {
        explicit Activation(const Attributes& a) : alpha(float(a.real("alpha"))), beta(float(a.real("beta"))) {
            static const std::map<std::string, std::pair<algorithm, algorithm>> algorithms{
                {"clip", {algorithm::eltwise_clip_v2, algorithm::eltwise_clip_v2_use_dst_for_bwd}},
                {"elu", {algorithm::eltwise_elu, algorithm::eltwise_elu_use_dst_for_bwd}},
                {"relu", {algorithm::eltwise_relu, algorithm::eltwise_relu_use_dst_for_bwd}},
                {"tanh", {algorithm::eltwise_tanh, algorithm::eltwise_tanh_use_dst_for_bwd}},
            };
            std::tie(forward, backward) = algorithms.at(a.text("activation"));
        }
        bool is_relu() const { return forward == algorithm::eltwise_relu && alpha == 0; }  // without slope
        void append_to(dnnl::post_ops& post) const {
            post.append_eltwise(forward, forward == algorithm::eltwise_relu ? relu_slope(alpha) : alpha, beta);
        }
        algorithm forward, backward;
        float alpha, beta;
    };

protected:
    explicit Weighted(OpSpec spec)
        : Op(std::move(spec)),
          bias_(spec_.attributes.flag("bias")),
          adds_(spec_.attributes.flag("adds")),
          constant_(spec_.attributes.flag("constant")),
          norm_(spec_.attributes.flag("norm")),
          wide_(spec_.attributes.flag("wide")),
          written_(spec_.params) {
        if (spec_.attributes.has("activation")) activation_.emplace(spec_.attributes);
    }

public:
    void forward(const dnnl::stream& stream) override {
        if (kept_weights_ && writes() != seen_) keep_parameters(stream);
        if (added_ && added_.get_data_handle() != outputs_[0]->data())
            bring_added_.execute(stream, added_, outputs_[0]->memory);
        Op::forward(stream);
    }

    void parameters_changed() override { seen_ = never; }

protected:
    primitive_attr forward_attr() const {
        primitive_attr attr = user_scratchpad();
        dnnl::post_ops post;
        if (adds_) post.append_sum(1.f);
        if (activation_) activation_->append_to(post);
        attr.set_post_ops(post);
        return attr;
    }

    // Tells whether the kernel adds a bias: the parameter, or the one that the normalisation folds into.
    bool biased() const { return bias_ || norm_; }

    // Returns the kernel that an attribute names for a pass; "" if none does.
    std::string kernel(const char* pass) const {
        return spec_.attributes.has(pass) ? spec_.attributes.text(pass) : std::string();
    }

    // To be called if the named kernel of a pass cannot be used. Throws std::invalid_argument with `exact`.
    void without_kernel(const char* pass) const {
        if (spec_.attributes.flag("exact"))
            throw std::invalid_argument(std::string(pass) + " cannot be computed by '" + kernel(pass) + "' here");
    }

    // Returns the type in which a pass computes by oneDNN's kernels.
    memory::data_type arithmetic(const char* pass) const {
        return kernel(pass) == "fp32" ? memory::data_type::f32 : input(0)->layout.get_data_type();
    }

    bool weights_learn() const { return param_gradient(0) || (bias_ && param_gradient(1)); }

    // Gives the weights the layout of their gradient, unless they have one. In bf16 this costs nothing, because forward
    // reads a copy in any case.
    void decide_weights(const Layout& gradient) {
        if (!param(0)->decided()) param(0)->decide(gradient);
    }

    template <typename Primitive>
    void add_forward(const typename Primitive::primitive_desc& pd) {
        const memory src = reading(input(0), pd.src_desc(), forward_calls_);
        const memory weights = constant_ ? constant_weights(pd.weights_desc()) : read_weights(pd.weights_desc());
        const Layout wanted = pd.dst_desc();
        const auto type = wide_ ? memory::data_type::f32 : input(0)->layout.get_data_type();
        const bool as_it_is = wanted.get_data_type() == type;  // or the kernel computes in float32
        output(0, as_it_is ? wanted : layout_like(wanted, wanted.get_dims(), type));
        const memory result = as_it_is ? outputs_[0]->memory : scratch(wanted);
        Call call{Primitive(pd), {{DNNL_ARG_SRC, src}, {DNNL_ARG_WEIGHTS, weights}, {DNNL_ARG_DST, result}}};
        if (norm_)
            call.args[DNNL_ARG_BIAS] = kept_bias_ = memory(pd.bias_desc(), cpu());
        else if (bias_)
            call.args[DNNL_ARG_BIAS] = reading_param(1, pd.bias_desc(), forward_calls_);
        if (adds_ && !as_it_is) {
            forward_calls_.push_back(reorder(input(1)->memory, result));
            touch(Pass::forward, input(1));
        } else if (adds_) {  // the kernel adds to what the result's memory holds: input 1 lies there if the plan can
            added_ = input(1)->memory;
            bring_added_ = dnnl::reorder(added_, outputs_[0]->memory);
            touch(Pass::forward, input(1));
            const bool is_source = input(1)->buffer->root() == input(0)->buffer->root();  // read by the kernel as well
            if (added_.get_desc() == pd.dst_desc() && !is_source) may_overwrite(Pass::forward, input(1), outputs_[0]);
        }
        call.args[DNNL_ARG_SCRATCHPAD] = scratch(pd.scratchpad_desc());
        forward_calls_.push_back(call);
        if (!as_it_is) forward_calls_.push_back(reorder(result, outputs_[0]->memory));
        implementation_ = pd.impl_info_str();
        touch(Pass::forward, {input(0), outputs_[0]});
    }

    // Returns the weights in the layout `wanted`, by a copy if it is another. The copy stays until backward if the
    // kernel of the data's gradient wants the same layout.
    memory read_weights(const Layout& wanted) {
        const memory given = described_param(0, wanted);
        if (wanted != data_weights_ || given.get_desc() == wanted) return reading_param(0, wanted, forward_calls_);
        copy_ = workspace("weights", wanted);
        forward_calls_.push_back(reorder(given, copy_->memory));
        touch(Pass::forward, copy_);
        touch(Pass::backward, copy_);
        return copy_->memory;
    }

    // Returns where forward finds constant weights in the layout `wanted`. If that is memory of their own,
    // keep_parameters() fills it when parameters have changed.
    memory constant_weights(const Layout& wanted) {
        if (norm_)
            for (size_t i = 1; i < spec_.params.size(); i++) plain_param(i);
        given_weights_ = described_param(0, wanted);
        if (!norm_ && given_weights_.get_desc() == wanted) return given_weights_;
        return kept_weights_ = memory(wanted, cpu());
    }

    // Returns how often the parameters have been written.
    uint64_t writes() const {
        uint64_t count = 0;
        for (const auto& each : written_) count += each->writes();
        return count;
    }

    void keep_parameters(const dnnl::stream& stream) {
        seen_ = writes();
        if (!norm_) {
            dnnl::reorder(given_weights_, kept_weights_).execute(stream, given_weights_, kept_weights_);
            return;
        }
        memory plain(plain_layout(kept_weights_.get_desc().get_dims()), cpu());
        dnnl::reorder(given_weights_, plain).execute(stream, given_weights_, plain);
        fold(address<float>(plain), address<float>(kept_bias_));
        dnnl::reorder(plain, kept_weights_).execute(stream, plain, kept_weights_);
    }

    // Folds the normalisation into weights and bias: scale ((w x + b) - mean) / sqrt(variance + eps) + shift is another
    // w x + b. BatchNorm's parameters are decayed sums, and the factor to divide them by.
    void fold(float* weights, float* bias) const {
        const size_t at = bias_ ? 2 : 1;
        const bool scaled = spec_.attributes.flag("scale"), shifted = spec_.attributes.flag("shift");
        const float eps = float(spec_.attributes.real("eps")), count = param(at + 2)->data()[0];
        const float factor = count == 0 ? 0 : 1 / count;
        const int64_t outputs = param(at)->count(), inputs = param(0)->count() / outputs;
        for (int64_t o = 0; o < outputs; o++) {
            const float mean = factor * param(at)->data()[o], variance = factor * param(at + 1)->data()[o];
            const float scale = (scaled ? param(at + 3)->data()[o] : 1) / std::sqrt(variance + eps);
            for (int64_t i = 0; i < inputs; i++) weights[o * inputs + i] *= scale;
            bias[o] = scale * ((bias_ ? param(1)->data()[o] : 0) - mean) + (shifted ? param(at + 4)->data()[o] : 0);
        }
    }

    // Makes backward compute the gradient before the activation from that after it, if there is an activation. It must
    // be called before the functions that read gradient().
    void close_activation() {
        if (!leaves_activation()) return;
        const algorithm how = activation_->backward;
        const float alpha = activation_->alpha, beta = activation_->beta;
        const Layout& layout = outputs_[0]->layout;
        const dnnl::eltwise_forward::primitive_desc hint(cpu(), prop_kind::forward_training, how, layout, layout, alpha,
                                                         beta);
        const dnnl::eltwise_backward::primitive_desc pd(cpu(), how, layout, layout, layout, alpha, beta, hint,
                                                        user_scratchpad());
        make_passed();
        fresh_scratch();
        backward_calls_.push_back({dnnl::eltwise_backward(pd),
                                   {{DNNL_ARG_DST, outputs_[0]->memory},
                                    {DNNL_ARG_DIFF_DST, outputs_[0]->diff->memory},
                                    {DNNL_ARG_DIFF_SRC, passed_->memory},
                                    {DNNL_ARG_SCRATCHPAD, scratch(pd.scratchpad_desc())}}});
    }

    // Makes backward convert the gradient of a float32 top to bf16, for kernels that read it so.
    void narrow_gradient() {
        if (!wide_ || !needs_backward() || !output_gradient(0)) return;
        passed_ = workspace("gradient", plain_layout(spec_.output_shapes[0], input(0)->layout.get_data_type()));
        touch(Pass::backward, {outputs_[0]->diff, passed_});
        backward_calls_.push_back(reorder(outputs_[0]->diff->memory, passed_->memory));
    }

    bool leaves_activation() const { return activation_ && needs_backward() && output_gradient(0); }

    // Makes the workspace for the gradient before the activation.
    void make_passed() {
        const TensorPtr& given = outputs_[0]->diff;
        passed_ = workspace("gradient", outputs_[0]->layout);
        touch(Pass::backward, {outputs_[0], given, passed_});
        may_overwrite(Pass::backward, given, passed_);
    }

    // Returns the gradient that the primitives read: before the activation, in x's type.
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
        const memory weights = copy_ ? copy_->memory : reading_param(0, pd.weights_desc(), backward_calls_);
        const Target diff_src = writing(input(0)->diff, pd.diff_src_desc());
        Call call{Primitive(pd),
                  {{DNNL_ARG_DIFF_DST, diff_dst}, {DNNL_ARG_WEIGHTS, weights}, {DNNL_ARG_DIFF_SRC, diff_src.memory}}};
        call.args[DNNL_ARG_SCRATCHPAD] = scratch(pd.scratchpad_desc());
        backward_calls_.push_back(call);
        finish(diff_src, backward_calls_);
        touch(Pass::backward, {gradient(), input(0)->diff});
    }

    bool bias_, adds_, constant_, norm_, wide_;
    std::vector<TensorPtr> written_;  // the parameters whose writes count: spec_ may hold views of them instead
    std::optional<Activation> activation_;
    TensorPtr passed_, copy_;  // see gradient(), read_weights()
    Layout data_weights_;      // the layout that the gradient of the data wants, if read_weights() should know it
    memory added_;
    dnnl::reorder bring_added_;
    memory given_weights_, kept_weights_, kept_bias_;  // constant parameters: as they are, and as the kernel wants them
    static constexpr uint64_t never = UINT64_MAX;
    uint64_t seen_ = never;  // writes() when the kept ones were made
    // Layouts to ask oneDNN with; "any" lets the kernel choose. Gradients of parameters are float32.
    Layout src_, dst_, weights_, diff_weights_, bias_layout_;
};

}  // namespace engine
