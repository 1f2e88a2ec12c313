// Functions of one number that oneDNN has: AbsVal, BNLL, ELU, ReLU, Sigmoid, Swish, TanH. Where the gradient follows
// from their result, that may lie where their input lay. inputs: x; attributes: negative_slope (ReLU), alpha (ELU),
// beta (Swish).
#include "onednn_util.h"

namespace engine {

class Activation : public Op {
public:
    // `from_result`: backward reads y; otherwise x, which then outlives the forward pass.
    Activation(OpSpec spec, algorithm how, double alpha = 0, bool from_result = true)
        : Op(std::move(spec)), algorithm_(how), alpha_(float(alpha)) {
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

    bool repeatable() const override { return true; }

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

class AbsVal : public Activation {
public:
    explicit AbsVal(const OpSpec& spec) : Activation(spec, algorithm::eltwise_abs, 0, false) {}
};

// log(1 + exp(x)).
class BNLL : public Activation {
public:
    explicit BNLL(const OpSpec& spec) : Activation(spec, algorithm::eltwise_soft_relu, 1, false) {}
};

// With a slope below zero, the sign of y says nothing about that of x: such functions need x for backward.
class ReLU : public Activation {
public:
    explicit ReLU(const OpSpec& spec) : ReLU(spec, spec.attributes.real("negative_slope", 0)) {}

private:
    ReLU(const OpSpec& spec, double slope)
        : Activation(spec, slope < 0 ? algorithm::eltwise_relu : algorithm::eltwise_relu_use_dst_for_bwd, slope,
                     slope >= 0) {}
};

// alpha (exp(x) - 1) where x is negative, x elsewhere.
class ELU : public Activation {
public:
    explicit ELU(const OpSpec& spec) : ELU(spec, spec.attributes.real("alpha")) {}

private:
    ELU(const OpSpec& spec, double alpha)
        : Activation(spec, alpha < 0 ? algorithm::eltwise_elu : algorithm::eltwise_elu_use_dst_for_bwd, alpha,
                     alpha >= 0) {}
};

class Sigmoid : public Activation {
public:
    explicit Sigmoid(OpSpec spec) : Activation(std::move(spec), algorithm::eltwise_logistic_use_dst_for_bwd) {}
};

// x / (1 + exp(-beta x)).
class Swish : public Activation {
public:
    explicit Swish(const OpSpec& spec)
        : Activation(spec, algorithm::eltwise_swish, spec.attributes.real("beta"), false) {}
};

class TanH : public Activation {
public:
    explicit TanH(OpSpec spec) : Activation(std::move(spec), algorithm::eltwise_tanh_use_dst_for_bwd) {}
};

static const RegisterOp<AbsVal> abs_val("AbsVal");
static const RegisterOp<BNLL> bnll("BNLL");
static const RegisterOp<ELU> elu("ELU");
static const RegisterOp<ReLU> relu("ReLU");
static const RegisterOp<Sigmoid> sigmoid("Sigmoid");
static const RegisterOp<Swish> swish("Swish");
static const RegisterOp<TanH> tanh("TanH");

}  // namespace engine
