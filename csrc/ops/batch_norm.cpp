// Batch normalisation, with the Scale layer that follows it and a ReLU fused in when the graph says so.
// inputs: x (N, C, ...); params: mean sum (C), variance sum (C), factor (1), then scale (C) and shift (C) where the
// attributes `scale` and `shift` say so; attributes: eps, moving_average_fraction, use_global_stats, scale, shift,
// relu.
#include <cmath>

#include "onednn_util.h"

namespace engine {

class BatchNorm : public Op {
public:
    explicit BatchNorm(OpSpec spec) : Op(std::move(spec)) {
        const auto& attributes = spec_.attributes;
        fraction_ = float(attributes.real("moving_average_fraction"));
        global_ = attributes.flag("use_global_stats");
        scale_ = attributes.flag("scale");
        shift_ = attributes.flag("shift");
        relu_ = attributes.flag("relu");
        const Dims& in = input(0)->shape;
        channels_ = in.size() > 1 ? in[1] : 1;
        per_channel_ = input(0)->count() / channels_;
        for (size_t i = 0; i < spec_.params.size(); i++) plain_param(i);
        mean_ = workspace("mean", plain_layout({channels_}));
        variance_ = workspace("variance", plain_layout({channels_}));

        const auto pd = make_forward(float(attributes.real("eps")));
        build_forward(pd);
        if (needs_backward() && spec_.backward) build_backward(pd, float(attributes.real("eps")));
    }

    void forward(const dnnl::stream& stream) override {
        if (global_) load_statistics();
        Op::forward(stream);
        if (!global_) update_statistics();
    }

private:
    using forward_pd = dnnl::batch_normalization_forward::primitive_desc;

    dnnl::normalization_flags flags() const {
        auto flags = dnnl::normalization_flags::none;
        if (global_) flags |= dnnl::normalization_flags::use_global_stats;
        if (scale_) flags |= dnnl::normalization_flags::use_scale;
        if (shift_) flags |= dnnl::normalization_flags::use_shift;
        if (relu_) flags |= dnnl::normalization_flags::fuse_norm_relu;
        return flags;
    }

    forward_pd make_forward(float eps) const {
        const Layout& layout = input(0)->layout;
        return forward_pd(cpu(), forward_kind(spec_), layout, layout, eps, flags(), user_scratchpad());
    }

    void build_forward(const forward_pd& pd) {
        output(0, pd.dst_desc());
        Call call{dnnl::batch_normalization_forward(pd),
                  {{DNNL_ARG_SRC, input(0)->memory},
                   {DNNL_ARG_DST, outputs_[0]->memory},
                   {DNNL_ARG_MEAN, mean_->memory},
                   {DNNL_ARG_VARIANCE, variance_->memory}}};
        if (scale_) call.args[DNNL_ARG_SCALE] = param(3)->memory;
        if (shift_) call.args[DNNL_ARG_SHIFT] = param(shift_index())->memory;
        if (relu_ && spec_.backward) {
            mask_ = workspace("relu", pd.workspace_desc());
            call.args[DNNL_ARG_WORKSPACE] = mask_->memory;
            touch(Pass::forward, mask_);
        }
        call.args[DNNL_ARG_SCRATCHPAD] = scratch(pd.scratchpad_desc());
        forward_calls_.push_back(call);
        implementation_ = pd.impl_info_str();
        touch(Pass::forward, {input(0), outputs_[0], mean_, variance_});
        may_overwrite(Pass::forward, input(0), outputs_[0]);
    }

    void build_backward(const forward_pd& hint, float eps) {
        const Layout& layout = input(0)->layout;
        const bool affine = scale_ || shift_;
        const dnnl::batch_normalization_backward::primitive_desc pd(
            cpu(), affine ? prop_kind::backward : prop_kind::backward_data, layout, layout, layout, eps, flags(), hint,
            user_scratchpad());
        fresh_scratch();
        Call call{dnnl::batch_normalization_backward(pd),
                  {{DNNL_ARG_SRC, input(0)->memory},
                   {DNNL_ARG_DIFF_DST, outputs_[0]->diff->memory},
                   {DNNL_ARG_MEAN, mean_->memory},
                   {DNNL_ARG_VARIANCE, variance_->memory}}};
        touch(Pass::backward, {input(0), outputs_[0]->diff, mean_, variance_});
        if (input_gradient(0)) {
            call.args[DNNL_ARG_DIFF_SRC] = input(0)->diff->memory;
            touch(Pass::backward, input(0)->diff);
            may_overwrite(Pass::backward, outputs_[0]->diff, input(0)->diff);
        } else {
            call.args[DNNL_ARG_DIFF_SRC] = scratch(layout);
        }
        Target scale, shift;
        if (scale_) {
            scale = writing_gradient(3, plain_layout({channels_}));
            call.args[DNNL_ARG_SCALE] = param(3)->memory;
            call.args[DNNL_ARG_DIFF_SCALE] = scale.memory;
        }
        if (shift_) {
            shift = writing_gradient(shift_index(), plain_layout({channels_}));
            call.args[DNNL_ARG_DIFF_SHIFT] = shift.memory;
        }
        if (mask_) {
            call.args[DNNL_ARG_WORKSPACE] = mask_->memory;
            touch(Pass::backward, mask_);
        }
        call.args[DNNL_ARG_SCRATCHPAD] = scratch(pd.scratchpad_desc());
        backward_calls_.push_back(call);
        finish(scale, backward_calls_);
        finish(shift, backward_calls_);
    }

    size_t shift_index() const { return scale_ ? 4 : 3; }

    // Files hold sums that were decayed at every step, and the factor to divide them by.
    void load_statistics() {
        const float factor = param(2)->data()[0];
        const float scale = factor == 0 ? 0 : 1 / factor;
        for (int64_t c = 0; c < channels_; c++) {
            mean_->data()[c] = scale * param(0)->data()[c];
            variance_->data()[c] = scale * param(1)->data()[c];
        }
    }

    void update_statistics() {
        const float unbiased = per_channel_ > 1 ? float(per_channel_) / float(per_channel_ - 1) : 1;
        float* const mean = param(0)->data();
        float* const variance = param(1)->data();
        param(2)->data()[0] = param(2)->data()[0] * fraction_ + 1;
        for (int64_t c = 0; c < channels_; c++) {
            mean[c] = mean[c] * fraction_ + mean_->data()[c];
            variance[c] = variance[c] * fraction_ + unbiased * variance_->data()[c];
        }
    }

    float fraction_;
    bool global_, scale_, shift_, relu_;
    int64_t channels_, per_channel_;
    TensorPtr mean_, variance_, mask_;
};

static const RegisterOp<BatchNorm> registered("BatchNorm");

}  // namespace engine
