// Local response normalisation: y = x / (k + alpha/count * sum of x^2 over the neighbourhood)^beta, the neighbourhood
// being `local_size` channels, or a square of that side in the same channel (then count is its area). inputs: x (N, C,
// H, W); attributes: local_size, alpha, beta, k, across_channels.
#include <algorithm>
#include <string>

#include "kernels/lrn_kernels.h"
#include "ops/common/elementwise.h"
#include "ops/common/onednn_util.h"

namespace engine {
namespace {

class LRN : public Op {
public:
    explicit LRN(OpSpec spec) : Op(std::move(spec)) {
        const auto& attributes = spec_.attributes;
        const Layout& layout = input(0)->layout;
        const int64_t size = attributes.integer("local_size");
        const float alpha = float(attributes.real("alpha")), beta = float(attributes.real("beta")),
                    k = float(attributes.real("k"));
        const bool across = attributes.flag("across_channels"), learns = input_gradient(0) && output_gradient(0);
        const Dims& dims = input(0)->shape;
        const float share = alpha / float(across ? size : size * size);
        const int64_t most = 2 * (across ? dims[1] : std::max(dims[2], dims[3])) - 1;  // a larger window sees no more
        kernels_ = {dims[0], dims[1], dims[2], dims[3], std::min(size, most), across, share, beta, k};
        // oneDNN 3.2 reads beyond the blob at local_size 1, and loops over the whole of a window, wherever it ends.
        if (size == 1 || size > most) {
            build_kernels(learns);
            return;
        }
        const auto how = across ? algorithm::lrn_across_channels : algorithm::lrn_within_channel;
        const dnnl::lrn_forward::primitive_desc pd(cpu(), forward_kind(spec_), how, layout, layout, size, alpha, beta,
                                                   k, user_scratchpad());
        const backward_pd back =
            learns ? backward_pd(cpu(), how, layout, layout, layout, size, alpha, beta, k, pd, user_scratchpad())
                   : backward_pd();
        // oneDNN has fast kernels for blocks of channels, and mostly for local_size 5.
        if (is_reference(pd) || (learns && is_reference(back))) {
            build_kernels(learns);
            return;
        }
        kernels_.size = 0;
        build_forward(pd);
        if (learns) build_backward(back);
    }

    void forward(const dnnl::stream& stream) override {
        Op::forward(stream);
        if (kernels_.size == 0) return;
        kernels_.values(address<float>(x_), scales_->data(), address<float>(y_.memory));
        run(after_forward_, stream);
    }

    void backward(const dnnl::stream& stream) override {
        Op::backward(stream);
        if (kernels_.size == 0) return;
        kernels_.gradients(address<float>(seen_), scales_->data(), address<float>(given_), address<float>(ratios_),
                           address<float>(wanted_.memory));
        run(after_backward_, stream);
    }

private:
    using backward_pd = dnnl::lrn_backward::primitive_desc;

    template <typename Primitive>
    static bool is_reference(const Primitive& pd) {
        return std::string(pd.impl_info_str()).find("ref") != std::string::npos;
    }

    // By kernels of our own, on row-major float32: what is something else is reordered.
    void build_kernels(bool learns) {
        const Layout plain = plain_layout(input(0)->shape);
        x_ = reading(input(0), plain, forward_calls_);
        output(0, input(0)->layout);
        y_ = writing(outputs_[0], plain);
        finish(y_, after_forward_);
        scales_ = workspace("scales", plain);
        touch(Pass::forward, {input(0), scales_, outputs_[0]});
        if (!learns) return;
        const TensorPtr &given = outputs_[0]->diff, &wanted = input(0)->diff;
        fresh_scratch();
        seen_ = reading(input(0), plain, backward_calls_);
        given_ = reading(given, plain, backward_calls_);
        ratios_ = scratch(plain);
        wanted_ = writing(wanted, plain);
        finish(wanted_, after_backward_);
        touch(Pass::backward, {input(0), scales_, given, wanted});
    }

    void build_forward(const dnnl::lrn_forward::primitive_desc& pd) {
        output(0, input(0)->layout);
        Call call{dnnl::lrn_forward(pd),
                  {{DNNL_ARG_SRC, input(0)->memory},
                   {DNNL_ARG_DST, outputs_[0]->memory},
                   {DNNL_ARG_SCRATCHPAD, scratch(pd.scratchpad_desc())}}};
        touch(Pass::forward, {input(0), outputs_[0]});
        if (pd.workspace_desc().get_size() > 0) {
            powers_ = workspace("powers", pd.workspace_desc());
            call.args[DNNL_ARG_WORKSPACE] = powers_->memory;
            touch(Pass::forward, powers_);
        }
        forward_calls_.push_back(call);
        implementation_ = pd.impl_info_str();
    }

    void build_backward(const backward_pd& pd) {
        const TensorPtr &given = outputs_[0]->diff, &wanted = input(0)->diff;
        fresh_scratch();
        Call call{dnnl::lrn_backward(pd),
                  {{DNNL_ARG_SRC, input(0)->memory},
                   {DNNL_ARG_DIFF_DST, given->memory},
                   {DNNL_ARG_DIFF_SRC, wanted->memory},
                   {DNNL_ARG_SCRATCHPAD, scratch(pd.scratchpad_desc())}}};
        touch(Pass::backward, {input(0), given, wanted});
        if (powers_) {
            call.args[DNNL_ARG_WORKSPACE] = powers_->memory;
            touch(Pass::backward, powers_);
        }
        backward_calls_.push_back(call);
    }

    TensorPtr powers_;  // what forward leaves for backward

    LrnKernels kernels_{};  // size 0: oneDNN does it
    memory x_, seen_, given_, ratios_;
    Target y_, wanted_;
    Calls after_forward_, after_backward_;
    TensorPtr scales_;
};

static const RegisterOp<LRN> registered("LRN");

}  // namespace
}  // namespace engine
