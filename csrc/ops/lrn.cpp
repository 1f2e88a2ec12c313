// Local response normalisation: y = x / (k + alpha/count * sum of x^2 over the neighbourhood)^beta, the neighbourhood
// being `local_size` channels, or a square of that side in the same channel (then count is its area). inputs: x (N, C,
// H, W); attributes: local_size, alpha, beta, k, across_channels.
#include "onednn_util.h"

namespace engine {

class LRN : public Op {
public:
    explicit LRN(OpSpec spec) : Op(std::move(spec)) {
        const auto& attributes = spec_.attributes;
        const Layout& layout = input(0)->layout;
        const int64_t size = attributes.integer("local_size");
        const float alpha = float(attributes.real("alpha")), beta = float(attributes.real("beta")),
                    k = float(attributes.real("k"));
        const auto how =
            attributes.flag("across_channels") ? algorithm::lrn_across_channels : algorithm::lrn_within_channel;
        const dnnl::lrn_forward::primitive_desc pd(cpu(), forward_kind(spec_), how, layout, layout, size, alpha, beta,
                                                   k, user_scratchpad());
        build_forward(pd);
        if (!input_gradient(0) || !output_gradient(0)) return;
        build_backward({cpu(), how, layout, layout, layout, size, alpha, beta, k, pd, user_scratchpad()});
    }

private:
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

    void build_backward(const dnnl::lrn_backward::primitive_desc& pd) {
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
};

static const RegisterOp<LRN> registered("LRN");

}  // namespace engine
