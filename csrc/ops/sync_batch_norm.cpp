// Batch normalisation over the batches of all ranks: sums are added up over the ranks in the middle of forward and of
// backward (OpSpec::ranks). Inputs, params and attributes as BatchNorm's, whose statistics are always those of the
// batch. Every rank's batch must have the same size.
//
// With N values of a channel over all ranks, x^ = (x - mean) / sqrt(variance + eps), and G = sum dy x^, B = sum dy:
//   dx = scale / sqrt(variance + eps) (dy - B / N - x^ G / N)
// oneDNN gives the first term and this rank's part of G and B when it takes mean and variance for constants; the other
// two are another normalisation of x, with coefficients -scale G / N and -scale B / N, both over the root.
#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "ops/common/onednn_util.h"

namespace engine {
namespace {

class SyncBatchNorm : public Op {
public:
    explicit SyncBatchNorm(OpSpec spec) : Op(std::move(spec)) {
        const auto& attributes = spec_.attributes;
        fraction_ = float(attributes.real("moving_average_fraction"));
        eps_ = float(attributes.real("eps"));
        relu_ = attributes.flag("relu");
        scale_ = attributes.flag("scale") ? 3 : 0;
        shift_ = attributes.flag("shift") ? 3 + int(scale_ > 0) : 0;
        channels_ = input(0)->shape.at(1);
        per_channel_ = input(0)->count() / channels_;
        for (size_t i = 0; i < spec_.params.size(); i++) plain_param(i);
        ones_.values.assign(size_t(channels_), 1.f);
        zeros_.values.assign(size_t(channels_), 0.f);
        for (Row* row : {&mean_, &variance_, &ones_, &zeros_, &scale_gradient_, &shift_gradient_, &alpha_, &beta_}) {
            row->values.resize(size_t(channels_));
            row->memory = memory(plain_layout({channels_}), cpu(), row->values.data());
        }
        sums_.resize(size_t(2 * channels_));
        build_forward();
        if (needs_backward() && spec_.backward) build_backward();
    }

    void forward(const dnnl::stream& stream) override {
        run(local_, stream);
        for (int64_t c = 0; c < channels_; c++) {
            const double mean = mean_[c];
            sums_[c] = mean;
            sums_[channels_ + c] = variance_[c] + mean * mean;
        }
        spec_.ranks->sum(sums_.data(), 2 * channels_);
        for (int64_t c = 0; c < channels_; c++) {
            const double mean = sums_[c] / double(spec_.ranks->count);
            const double square = sums_[channels_ + c] / double(spec_.ranks->count);
            mean_[c] = float(mean);
            variance_[c] = float(std::max(0.0, square - mean * mean));
        }
        Op::forward(stream);
        if (relu_) restore_nans();
        update_statistics();
    }

    void backward(const dnnl::stream& stream) override {
        Op::backward(stream);
        write_gradient(scale_, scale_gradient_);
        write_gradient(shift_, shift_gradient_);
        for (int64_t c = 0; c < channels_; c++) {
            sums_[c] = scale_gradient_[c];
            sums_[channels_ + c] = shift_gradient_[c];
        }
        spec_.ranks->sum(sums_.data(), 2 * channels_);
        const double count = double(per_channel_) * double(spec_.ranks->count);
        for (int64_t c = 0; c < channels_; c++) {
            const double factor = (scale_ ? param(size_t(scale_))->data()[c] : 1.f) / std::sqrt(variance_[c] + eps_);
            alpha_[c] = float(-factor * sums_[c] / count);
            beta_[c] = float(-factor * sums_[channels_ + c] / count);
        }
        run(correction_, stream);
    }

private:
    struct Row {  // a number for each channel
        std::vector<float> values;
        dnnl::memory memory;
        float& operator[](int64_t c) { return values[size_t(c)]; }
    };
    using forward_pd = dnnl::batch_normalization_forward::primitive_desc;
    using flag = dnnl::normalization_flags;

    memory coefficient(int index, const Row& otherwise) const {
        return index ? param(size_t(index))->memory : otherwise.memory;
    }

    flag flags() const {
        const flag affine = flag::use_global_stats | flag::use_scale | flag::use_shift;
        return relu_ ? affine | flag::fuse_norm_relu : affine;
    }

    forward_pd normalise(prop_kind kind, flag flags) const {
        return forward_pd(cpu(), kind, input(0)->layout, input(0)->layout, eps_, flags, user_scratchpad());
    }

    // Channels whose mean is NaN, of which oneDNN's ReLU makes 0.
    void restore_nans() {
        if (std::none_of(mean_.values.begin(), mean_.values.end(), [](float mean) { return std::isnan(mean); })) return;
        std::vector<float> y(size_t(input(0)->count()));
        outputs_[0]->read(y.data());
        const int64_t size = per_channel_ / input(0)->shape[0];  // of a channel of a sample
        for (int64_t i = 0; i < input(0)->count(); i++)
            if (const float mean = mean_[i / size % channels_]; std::isnan(mean)) y[size_t(i)] = mean;
        outputs_[0]->write(y.data());
    }

    void build_forward() {
        output(0, input(0)->layout);
        touch(Pass::forward, {input(0), outputs_[0]});
        // The top is written twice; what the first call leaves there is of no use.
        const auto local = normalise(prop_kind::forward_training, flag::none);
        local_.push_back({dnnl::batch_normalization_forward(local),
                          {{DNNL_ARG_SRC, input(0)->memory},
                           {DNNL_ARG_DST, outputs_[0]->memory},
                           {DNNL_ARG_MEAN, mean_.memory},
                           {DNNL_ARG_VARIANCE, variance_.memory},
                           {DNNL_ARG_SCRATCHPAD, scratch(local.scratchpad_desc())}}});
        fresh_scratch();
        const auto pd = normalise(prop_kind::forward_training, flags());
        forward_calls_.push_back({dnnl::batch_normalization_forward(pd),
                                  {{DNNL_ARG_SRC, input(0)->memory},
                                   {DNNL_ARG_DST, outputs_[0]->memory},
                                   {DNNL_ARG_MEAN, mean_.memory},
                                   {DNNL_ARG_VARIANCE, variance_.memory},
                                   {DNNL_ARG_SCALE, coefficient(scale_, ones_)},
                                   {DNNL_ARG_SHIFT, coefficient(shift_, zeros_)},
                                   {DNNL_ARG_SCRATCHPAD, scratch(pd.scratchpad_desc())}}});
        if (relu_) {
            mask_ = workspace("relu", pd.workspace_desc());
            forward_calls_.back().args[DNNL_ARG_WORKSPACE] = mask_->memory;
            touch(Pass::forward, mask_);
        }
        implementation_ = pd.impl_info_str();
    }

    void build_backward() {
        const Layout& layout = input(0)->layout;
        const dnnl::batch_normalization_backward::primitive_desc pd(
            cpu(), prop_kind::backward, layout, layout, layout, eps_, flags(),
            normalise(prop_kind::forward_training, flags()), user_scratchpad());
        fresh_scratch();
        touch(Pass::backward, {input(0), outputs_[0]->diff});
        const memory wanted = input_gradient(0) ? input(0)->diff->memory : scratch(layout);
        Call call{dnnl::batch_normalization_backward(pd),
                  {{DNNL_ARG_SRC, input(0)->memory},
                   {DNNL_ARG_DIFF_DST, outputs_[0]->diff->memory},
                   {DNNL_ARG_MEAN, mean_.memory},
                   {DNNL_ARG_VARIANCE, variance_.memory},
                   {DNNL_ARG_SCALE, coefficient(scale_, ones_)},
                   {DNNL_ARG_DIFF_SRC, wanted},
                   {DNNL_ARG_DIFF_SCALE, scale_gradient_.memory},
                   {DNNL_ARG_DIFF_SHIFT, shift_gradient_.memory},
                   {DNNL_ARG_SCRATCHPAD, scratch(pd.scratchpad_desc())}}};
        if (mask_) {
            call.args[DNNL_ARG_WORKSPACE] = mask_->memory;
            touch(Pass::backward, mask_);
        }
        backward_calls_.push_back(call);
        if (input_gradient(0)) build_correction(wanted);
    }

    void build_correction(const memory& wanted) {
        const Layout& layout = input(0)->layout;
        touch(Pass::backward, input(0)->diff);
        may_overwrite(Pass::backward, outputs_[0]->diff, input(0)->diff);
        const auto pd =
            normalise(prop_kind::forward_inference, flag::use_global_stats | flag::use_scale | flag::use_shift);
        fresh_scratch();
        const memory missing = scratch(layout);
        correction_.push_back({dnnl::batch_normalization_forward(pd),
                               {{DNNL_ARG_SRC, input(0)->memory},
                                {DNNL_ARG_DST, missing},
                                {DNNL_ARG_MEAN, mean_.memory},
                                {DNNL_ARG_VARIANCE, variance_.memory},
                                {DNNL_ARG_SCALE, alpha_.memory},
                                {DNNL_ARG_SHIFT, beta_.memory},
                                {DNNL_ARG_SCRATCHPAD, scratch(pd.scratchpad_desc())}}});
        const dnnl::binary::primitive_desc add(cpu(), algorithm::binary_add, layout, layout, layout, user_scratchpad());
        correction_.push_back({dnnl::binary(add),
                               {{DNNL_ARG_SRC_0, wanted},
                                {DNNL_ARG_SRC_1, missing},
                                {DNNL_ARG_DST, wanted},
                                {DNNL_ARG_SCRATCHPAD, scratch(add.scratchpad_desc())}}});
    }

    // This rank's part: gradients are averaged over the ranks like all others.
    void write_gradient(int index, const Row& row) {
        if (!index || !param_gradient(size_t(index))) return;
        const TensorPtr& diff = param(size_t(index))->diff;
        for (int64_t c = 0; c < channels_; c++)
            diff->data()[c] = row.values[size_t(c)] + (diff->accumulate ? diff->data()[c] : 0.f);
    }

    void update_statistics() {
        const double count = double(per_channel_) * double(spec_.ranks->count);
        const float unbiased = count > 1 ? float(count / (count - 1)) : 1;
        param(2)->data()[0] = param(2)->data()[0] * fraction_ + 1;
        for (int64_t c = 0; c < channels_; c++) {
            param(0)->data()[c] = param(0)->data()[c] * fraction_ + mean_[c];
            param(1)->data()[c] = param(1)->data()[c] * fraction_ + unbiased * variance_[c];
        }
    }

    float fraction_, eps_;
    bool relu_;
    int scale_, shift_;  // which parameters; 0: there is none
    int64_t channels_, per_channel_;
    Row mean_, variance_, ones_, zeros_, scale_gradient_, shift_gradient_, alpha_, beta_;
    std::vector<double> sums_;
    TensorPtr mask_;
    Calls local_, correction_;
};

static const RegisterOp<SyncBatchNorm> registered("SyncBatchNorm");

}  // namespace
}  // namespace engine
