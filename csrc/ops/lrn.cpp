// Computes local response normalisation: y = x / (k + alpha / count * sum of x^2 over the neighbourhood)^beta. The
// neighbourhood is `local_size` channels or, without across_channels, a square of that side in the same channel; count
// is its size.
// inputs: x (N, C, H, W), float32 or bf16, in any layout; outputs: as x; attributes: local_size, alpha, beta, k,
// across_channels.
#include <algorithm>
#include <optional>
#include <string>

#include "kernels/bf16.h"
#include "kernels/lrn_kernels.h"
#include "ops/common/channel_layout.h"
#include "ops/common/elementwise.h"
#include "ops/common/onednn_util.h"
#include "threads.h"

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
        // oneDNN 3.2 reads beyond the blob at local_size 1, and loops over all of a window, even beyond the blob.
        if (size == 1 || size > most) {
            build_own(learns);
            return;
        }
        const auto how = across ? algorithm::lrn_across_channels : algorithm::lrn_within_channel;
        const dnnl::lrn_forward::primitive_desc pd(cpu(), forward_kind(spec_), how, layout, layout, size, alpha, beta,
                                                   k, user_scratchpad());
        const backward_pd back =
            learns ? backward_pd(cpu(), how, layout, layout, layout, size, alpha, beta, k, pd, user_scratchpad())
                   : backward_pd();
        // oneDNN's fast kernels are for blocks of channels, and most of them for local_size 5.
        if (is_reference(pd) || (learns && is_reference(back))) {
            build_own(learns);
            return;
        }
        build_forward(pd);
        if (learns) build_backward(back);
    }

    void forward(const dnnl::stream& stream) override {
        Op::forward(stream);
        if (rows_) {
            const TensorPtr &x = input(0), &y = outputs_[0];
            x->is_bf16() ? values_in_lanes(address<bf16>(x), address<bf16>(y)) : values_in_lanes(x->data(), y->data());
        } else if (scales_) {
            kernels_.values(address<float>(x_), scales_->data(), address<float>(y_.memory));
            run(after_forward_, stream);
        }
    }

    void backward(const dnnl::stream& stream) override {
        Op::backward(stream);
        if (touched(Pass::backward).empty()) return;
        if (rows_) {
            const TensorPtr &x = input(0), &given = outputs_[0]->diff, &wanted = x->diff;
            if (x->is_bf16())
                gradients_in_lanes(address<bf16>(x), address<bf16>(given), address<bf16>(wanted));
            else
                gradients_in_lanes(x->data(), given->data(), wanted->data());
        } else if (scales_) {
            kernels_.gradients(address<float>(seen_), scales_->data(), address<float>(given_), address<float>(ratios_),
                               address<float>(wanted_.memory));
            run(after_backward_, stream);
        }
    }

private:
    using backward_pd = dnnl::lrn_backward::primitive_desc;

    template <typename Primitive>
    static bool is_reference(const Primitive& pd) {
        return std::string(pd.impl_info_str()).find("ref") != std::string::npos;
    }

    // Builds both passes by our own kernels.
    void build_own(bool learns) {
        const auto rows = channel_rows(input(0)->layout);
        if (kernels_.across_channels && rows && rows->lanes > 1)
            build_in_lanes(*rows, learns);
        else
            build_row_major(learns);
    }

    void build_in_lanes(const ChannelRows& rows, bool learns) {
        rows_ = rows;
        output(0, input(0)->layout);
        lines_ = scratch(plain_layout({threads_, kernels_.scratch_size(rows)}));
        touch(Pass::forward, {input(0), outputs_[0]});
        may_overwrite(Pass::forward, input(0), outputs_[0]);
        if (!learns) return;
        touch(Pass::backward, {input(0), outputs_[0]->diff, input(0)->diff});
        may_overwrite(Pass::backward, outputs_[0]->diff, input(0)->diff);
    }

    template <typename T>
    void values_in_lanes(const T* x, T* y) const {
        kernels_.values_in_lanes(*rows_, x, y, address<float>(lines_), team());
    }

    template <typename T>
    void gradients_in_lanes(const T* x, const T* given, T* wanted) const {
        kernels_.gradients_in_lanes(*rows_, x, given, wanted, address<float>(lines_), team());
    }

    int team() const { return std::min(threads_, threads()); }

    // Builds passes over row-major float32 planes; other blobs are reordered.
    void build_row_major(bool learns) {
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

    TensorPtr powers_;  // what oneDNN's forward leaves for its backward

    // One of three runs: oneDNN, if the next two are empty, or our own kernels on channels side by side (rows_) or on
    // row-major planes (scales_).
    std::optional<ChannelRows> rows_;
    TensorPtr scales_;

    LrnKernels kernels_{};
    int threads_ = threads();
    memory lines_;  // scratch for each of threads_
    memory x_, seen_, given_, ratios_;
    Target y_, wanted_;
    Calls after_forward_, after_backward_;
};

static const RegisterOp<LRN> registered("LRN");

}  // namespace
}  // namespace engine
