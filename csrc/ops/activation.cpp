// Functions of one number whose gradient follows from their result, so that they can work in place: ReLU, Sigmoid,
// TanH. inputs: x; attributes: negative_slope (ReLU).
#include "onednn_util.h"

namespace engine {

class Activation : public Op {
public:
    // `from_result`: backward reads y; otherwise x, which then outlives the forward pass.
    Activation(OpSpec spec, algorithm how, bool from_result = true) : Op(std::move(spec)), algorithm_(how) {
        alpha_ = float(spec_.attributes.real("negative_slope", 0));
        const Layout& layout = input(0)->layout;
        const forward_pd pd(cpu(), forward_kind(spec_), algorithm_, layout, layout, alpha_, 0.f, user_scratchpad());
        output(0, layout);
        forward_calls_.push_back({dnnl::eltwise_forward(pd),
                                  {{DNNL_ARG_SRC, input(0)->memory},
                                   {DNNL_ARG_DST, outputs_[0]->memory},
                                   {DNNL_ARG_SCRATCHPAD, scratch(pd.scratchpad_desc())}}});
        implementation_ = pd.impl_info_str();
        touch(Pass::forward, {input(0), outputs_[0]});
        may_overwrite(Pass::forward, input(0), outputs_[0]);
        if (input_gradient(0) && output_gradient(0)) build_backward(pd, from_result);
    }

private:
    using forward_pd = dnnl::eltwise_forward::primitive_desc;

    void build_backward(const forward_pd& hint, bool from_result) {
        const Layout& layout = input(0)->layout;
        const dnnl::eltwise_backward::primitive_desc pd(cpu(), algorithm_, layout, layout, layout, alpha_, 0.f, hint,
                                                        user_scratchpad());
        const TensorPtr& known = from_result ? outputs_[0] : input(0);
        const TensorPtr &given = outputs_[0]->diff, &wanted = input(0)->diff;
        fresh_scratch();
        backward_calls_.push_back({dnnl::eltwise_backward(pd),
                                   {{from_result ? DNNL_ARG_DST : DNNL_ARG_SRC, known->memory},
                                    {DNNL_ARG_DIFF_DST, given->memory},
                                    {DNNL_ARG_DIFF_SRC, wanted->memory},
                                    {DNNL_ARG_SCRATCHPAD, scratch(pd.scratchpad_desc())}}});
        touch(Pass::backward, {known, given, wanted});
        may_overwrite(Pass::backward, given, wanted);
    }

    algorithm algorithm_;
    float alpha_;
};

class ReLU : public Activation {
public:
    // With a negative slope below zero, the sign of y says nothing about that of x.
    explicit ReLU(const OpSpec& spec)
        : Activation(spec, folds(spec) ? algorithm::eltwise_relu : algorithm::eltwise_relu_use_dst_for_bwd,
                     !folds(spec)) {}

private:
    static bool folds(const OpSpec& spec) { return spec.attributes.real("negative_slope", 0) < 0; }
};

class Sigmoid : public Activation {
public:
    explicit Sigmoid(OpSpec spec) : Activation(std::move(spec), algorithm::eltwise_logistic_use_dst_for_bwd) {}
};

class TanH : public Activation {
public:
    explicit TanH(OpSpec spec) : Activation(std::move(spec), algorithm::eltwise_tanh_use_dst_for_bwd) {}
};

static const RegisterOp<ReLU> relu("ReLU");
static const RegisterOp<Sigmoid> sigmoid("Sigmoid");
static const RegisterOp<TanH> tanh("TanH");

}  // namespace engine
