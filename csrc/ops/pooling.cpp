// Computes the maximum or the average over windows, along one to three spatial axes. Windows may run past the padding
// at the end, because Caffe rounds sizes up.
// inputs: x (N, C, ...), float32 or bf16, in any layout; outputs: y (N, C, ...), laid out as x; attributes: method
// (MAX, AVE), kernel, stride, pad (one for each spatial axis), include_pad (AVE: padding counts in the divisor).
#include <algorithm>
#include <cstring>
#include <optional>

#include "kernels/bf16.h"
#include "kernels/isa.h"
#include "kernels/max_windows.h"
#include "ops/common/channel_layout.h"
#include "ops/common/onednn_util.h"
#include "ops/common/parts.h"

namespace engine {
namespace {

class Pooling : public Op {
public:
    explicit Pooling(OpSpec spec) : Op(std::move(spec)) {
        const auto& attributes = spec_.attributes;
        kernel_ = attributes.integers("kernel");
        stride_ = attributes.integers("stride");
        pad_ = attributes.integers("pad");
        dilation_.assign(kernel_.size(), 0);
        for (size_t axis = 0; axis < kernel_.size(); axis++) pad_end_.push_back(std::max<int64_t>(0, reach(axis)));
        const bool include_pad = attributes.flag("include_pad", true);
        how_ = attributes.text("method") == "MAX" ? algorithm::pooling_max
               : include_pad && has_padding()     ? algorithm::pooling_avg_include_padding
                                                  : algorithm::pooling_avg_exclude_padding;
        if (how_ == algorithm::pooling_max && build_own()) return;
        const forward_pd pd = make_forward();
        build_forward(pd);
        if (how_ == algorithm::pooling_avg_include_padding) find_border();
        if (input_gradient(0) && output_gradient(0)) build_backward(pd);
    }

    void forward(const dnnl::stream& stream) override {
        Op::forward(stream);
        if (own_) {
            float* const y = outputs_[0]->data();
            own_->values(rows_.bottom, input(0)->data(), rows_.top, y, which_ ? address<uint8_t>(which_) : nullptr);
            if (own_->has_empty()) clear_padding(rows_.top, sizeof(float), y);
        }
        scale_border(outputs_[0]->memory);
    }

    void backward(const dnnl::stream& stream) override {
        if (!border_.empty()) {
            std::memcpy(scaled_.get_data_handle(), outputs_[0]->diff->memory.get_data_handle(),
                        outputs_[0]->layout.get_size());
            scale_border(scaled_);
        }
        Op::backward(stream);
        if (own_ && !touched(Pass::backward).empty())
            own_->gradients(rows_.bottom, rows_.top, outputs_[0]->diff->data(), address<uint8_t>(which_),
                            input(0)->diff->data());
    }

private:
    using forward_pd = dnnl::pooling_forward::primitive_desc;

    int64_t size(size_t axis) const { return input(0)->shape[axis + 2]; }
    int64_t output_size(size_t axis) const { return spec_.output_shapes[0][axis + 2]; }
    // Returns how far the last window along an axis ends beyond the input.
    int64_t reach(size_t axis) const {
        return (output_size(axis) - 1) * stride_[axis] + kernel_[axis] - size(axis) - pad_[axis];
    }
    bool has_padding() const {
        return std::any_of(pad_.begin(), pad_.end(), [](int64_t pad) { return pad > 0; });
    }

    // Returns the layout of the top, which is the bottom's. oneDNN would choose the same, except if the bottom has an
    // axis of one element that padding makes longer: its stride does not tell where the axis belongs, and readers might
    // not know the layout of the top.
    Layout top_layout() const {
        const Layout& bottom = input(0)->layout;
        return layout_like(bottom, spec_.output_shapes[0], bottom.get_data_type());
    }

    // Builds both passes by our own kernels, if they fit. Returns whether they do.
    bool build_own() {
        if (!may_use(Isa::avx2) || may_use(Isa::avx512) || input(0)->is_bf16()) return false;
        const Layout &bottom = input(0)->layout, top = top_layout();
        const auto x = channel_rows(bottom), y = channel_rows(top);
        const bool plain = is_plain(bottom) && is_plain(top);
        MaxWindows windows;
        MaxWindows::Axis* const axes[] = {&windows.inner, kernel_.size() > 2 ? &windows.middle : &windows.outer,
                                          &windows.outer};
        for (size_t i = 0; i < kernel_.size(); i++) {
            const size_t axis = kernel_.size() - 1 - i;
            *axes[i] = {size(axis), output_size(axis), kernel_[axis], stride_[axis], pad_[axis]};
        }
        if (!x || !y || (!plain && x->lanes != y->lanes) || !windows.fits()) return false;
        own_ = windows;
        rows_ = rows_of_both(bottom, top);
        implementation_ = "engine:avx2";
        output(0, top);
        touch(Pass::forward, {input(0), outputs_[0]});
        if (!input_gradient(0) || !output_gradient(0)) return true;
        which_ = workspace("which", layout_like(top, spec_.output_shapes[0], memory::data_type::u8));
        touch(Pass::forward, which_);
        touch(Pass::backward, {which_, outputs_[0]->diff, input(0)->diff});
        return true;
    }

    forward_pd make_forward() const {
        return forward_pd(cpu(), forward_kind(spec_), how_, input(0)->layout, top_layout(), stride_, kernel_, dilation_,
                          pad_, pad_end_, user_scratchpad());
    }

    void build_forward(const forward_pd& pd) {
        output(0, top_layout());  // not pd's: oneDNN may have cached that for axes of one element with other strides
        Call call{dnnl::pooling_forward(pd),
                  {{DNNL_ARG_SRC, input(0)->memory},
                   {DNNL_ARG_DST, outputs_[0]->memory},
                   {DNNL_ARG_SCRATCHPAD, scratch(pd.scratchpad_desc())}}};
        touch(Pass::forward, {input(0), outputs_[0]});
        if (pd.workspace_desc().get_size() > 0) {
            which_ = workspace("which", pd.workspace_desc());
            call.args[DNNL_ARG_WORKSPACE] = which_->memory;
            touch(Pass::forward, which_);
        }
        forward_calls_.push_back(call);
        implementation_ = pd.impl_info_str();
    }

    void build_backward(const forward_pd& hint) {
        const TensorPtr &given = outputs_[0]->diff, &wanted = input(0)->diff;
        const dnnl::pooling_backward::primitive_desc pd(cpu(), how_, wanted->layout, given->layout, stride_, kernel_,
                                                        dilation_, pad_, pad_end_, hint, user_scratchpad());
        fresh_scratch();
        if (!border_.empty()) scaled_ = scratch(given->layout);
        Call call{dnnl::pooling_backward(pd),
                  {{DNNL_ARG_DIFF_DST, border_.empty() ? given->memory : scaled_},
                   {DNNL_ARG_DIFF_SRC, wanted->memory},
                   {DNNL_ARG_SCRATCHPAD, scratch(pd.scratchpad_desc())}}};
        touch(Pass::backward, {given, wanted});
        if (which_) {
            call.args[DNNL_ARG_WORKSPACE] = which_->memory;
            touch(Pass::backward, which_);
        }
        backward_calls_.push_back(call);
    }

    // Finds the windows whose averages need a factor: oneDNN divides by the size of the window, Caffe by that of its
    // part within input and padding. They differ only in the last window of an axis, if it runs past the padding.
    void find_border() {
        std::vector<int64_t> position(kernel_.size(), 0);
        const int64_t positions = count_of({spec_.output_shapes[0].begin() + 2, spec_.output_shapes[0].end()});
        for (int64_t at = 0; at < positions; at++) {
            float factor = 1;
            int64_t rest = at;
            for (size_t axis = kernel_.size(); axis-- > 0; rest /= output_size(axis)) {
                const int64_t beyond = reach(axis) - pad_[axis];
                if (rest % output_size(axis) == output_size(axis) - 1 && beyond > 0)
                    factor *= float(kernel_[axis]) / float(kernel_[axis] - beyond);
            }
            if (factor != 1) border_.emplace_back(at, factor);
        }
        if (border_.empty()) return;
        rows_.top = known_rows(outputs_[0]->layout);
    }

    void scale_border(const memory& y) const {
        if (border_.empty()) return;
        if (y.get_desc().get_data_type() == memory::data_type::bf16)
            scale_border(address<bf16>(y));
        else
            scale_border(address<float>(y));
    }

    template <typename T>
    void scale_border(T* y) const {
        const ChannelRows& rows = rows_.top;
        const int64_t blocks = rows.blocks();
#pragma omp parallel for schedule(static) if (!rows.small())
        for (int64_t panel = 0; panel < rows.panels(); panel++) {
            T* const start = y + rows.offset(panel / blocks, panel % blocks);
            for (const auto& [position, factor] : border_) {
                T* const row = start + position * rows.inner_stride;
                for (int64_t lane = 0; lane < rows.lanes; lane++) store(number(row[lane]) * factor, row[lane]);
            }
        }
    }

    Dims kernel_, stride_, pad_, pad_end_, dilation_;
    algorithm how_;
    TensorPtr which_;                                // MAX: the place of the maximum in each window
    std::vector<std::pair<int64_t, float>> border_;  // (position in the top, factor), see find_border()
    std::optional<MaxWindows> own_;                  // instead of oneDNN's kernels
    BottomAndTop rows_{};                            // set with own_; with border_ only the top's
    memory scaled_;                                  // scratch: the top's gradient with its border scaled
};

static const RegisterOp<Pooling> registered("Pooling");

}  // namespace
}  // namespace engine
