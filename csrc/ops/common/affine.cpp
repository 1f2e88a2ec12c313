#include "ops/common/affine.h"

#include <stdexcept>

#include "ops/common/channel_layout.h"
#include "ops/common/elementwise.h"

namespace engine {

Affine::Affine(OpSpec spec) : Op(std::move(spec)), rows_(view()) {
    if (!is_plain(input(0)->layout) && spec_.attributes.integer("axis") == 0) copies_ = rows_.outer;
}

// Channels (axis 1) and the pair of axes 0 and 1 are walked in any layout, everything else in row-major order.
ChannelRows Affine::view() const {
    const Layout& layout = input(0)->layout;
    const Dims dims = layout.get_dims();
    const auto axis = dims.begin() + spec_.attributes.integer("axis");
    const auto end = axis + spec_.attributes.integer("num_axes");
    if (is_plain(layout))
        return ChannelRows::plain(count_of({dims.begin(), axis}), count_of({axis, end}), count_of({end, dims.end()}));
    const auto rows = channel_rows(layout);
    if (!rows || end != dims.begin() + 2)
        throw std::invalid_argument("no kernel for these axes of a blob laid out as " + layout_name(layout));
    return *rows;
}

Affine::Coefficient Affine::coefficient_param(size_t i) {
    plain_param(i);
    return {param(i), memory(), memory()};
}

Affine::Coefficient Affine::coefficient_input(size_t i) {
    touch(Pass::forward, input(i));
    touch(Pass::backward, input(i));
    if (input_gradient(i)) touch(Pass::backward, input(i)->diff);
    return {input(i), memory(), memory()};
}

void Affine::build() {
    output(0, input(0)->layout);
    touch(Pass::forward, {input(0), outputs_[0]});
    may_overwrite(Pass::forward, input(0), outputs_[0]);
    for (Coefficient* each : {&scale_, &shift_})
        each->padded = scratch(plain_layout({copies_, rows_.padded_channels()}));
    if (needs_backward() && output_gradient(0)) build_backward();
}

void Affine::build_backward() {
    const Layout sums = plain_layout({rows_.outer, rows_.padded_channels()}, memory::data_type::f64);
    for (Coefficient* each : {&scale_, &shift_})
        if (each->wants_gradient()) each->sums = scratch(sums);
    const TensorPtr &given = outputs_[0]->diff, &wanted = input(0)->diff;
    touch(Pass::backward, given);
    if (scale_.wants_gradient()) touch(Pass::backward, input(0));
    if (!wanted) return;
    touch(Pass::backward, wanted);
    if (scale_.tensor || spec_.keep_all)
        may_overwrite(Pass::backward, given, wanted);
    else
        given->buffer->join(wanted->buffer);  // a shift passes the gradient on as it is
}

const float* Affine::pad(const memory& into, const TensorPtr& values, float missing) const {
    pad_channels(rows_, values ? values->data() : nullptr, missing, copies_, address<float>(into));
    return address<float>(into);
}

void Affine::forward(const dnnl::stream&) {
    const float* const scale = pad(scale_.padded, scale_.tensor, 1);
    const float* const shift = pad(shift_.padded, shift_.tensor, 0);
    affine_rows(rows_, input(0)->data(), scale, shift, copies_ > 1, outputs_[0]->data());
}

void Affine::backward(const dnnl::stream&) {
    const float* const given = outputs_[0]->diff->data();
    for (const Coefficient* each : {&scale_, &shift_}) {
        if (!each->wants_gradient()) continue;
        const float* const factor = each == &scale_ ? input(0)->data() : nullptr;
        sum_channels(rows_, given, factor, address<double>(each->sums));
        write_gradient(*each);
    }
    // Last, because it may be written over `given`.
    if (!input_gradient(0) || (!scale_.tensor && given == input(0)->diff->data())) return;
    const float* const scale = pad(scale_.padded, scale_.tensor, 1);
    affine_rows(rows_, given, scale, pad(shift_.padded, nullptr, 0), copies_ > 1, input(0)->diff->data());
}

void Affine::write_gradient(const Coefficient& coefficient) const {
    const double* sums = address<double>(coefficient.sums);
    const TensorPtr& diff = coefficient.tensor->diff;
    const int64_t padded = rows_.padded_channels(), terms = rows_.outer / copies_;
    float* into = diff->data();
    for (int64_t copy = 0; copy < copies_; copy++, sums += padded, into += rows_.channels) {
        for (int64_t channel = 0; channel < rows_.channels; channel++) {
            double total = 0;
            for (int64_t n = 0; n < terms; n++) total += sums[n * padded + channel];
            into[channel] = float(total) + (diff->accumulate ? into[channel] : 0.f);
        }
    }
}

}  // namespace engine
