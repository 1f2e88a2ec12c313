#include "ops/common/affine.h"

#include <stdexcept>

#include "kernels/bf16.h"
#include "ops/common/channel_layout.h"

namespace engine {

Affine::Affine(OpSpec spec) : Op(std::move(spec)), rows_(view()), zeros_(rows_.lanes, 0.f), ones_(rows_.lanes, 1.f) {
    if (!is_plain(input(0)->layout) && spec_.attributes.integer("axis") == 0) copies_ = rows_.outer;
}

// Returns how the kernels walk x: in any layout if the coefficients cover axis 1 or axes 0 and 1, else in row-major
// order. Throws std::invalid_argument if x is laid out otherwise.
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

void Affine::build(int added) {
    added_ = added;
    const Layout& layout = input(0)->layout;
    output(0, layout);
    touch(Pass::forward, {input(0), outputs_[0]});
    may_overwrite(Pass::forward, input(0), outputs_[0]);
    for (Coefficient* each : {&scale_, &shift_})
        if (each->tensor) each->padded = scratch(plain_layout({copies_, rows_.padded_channels()}));
    if (added >= 0) {
        added_values_ = reading(input(added), layout, forward_calls_);
        touch(Pass::forward, input(added));
        may_overwrite(Pass::forward, input(added), outputs_[0]);
    }
    if (needs_backward() && output_gradient(0)) build_backward();
}

void Affine::build_backward() {
    const Layout sums = plain_layout({rows_.outer, rows_.padded_channels()}, memory::data_type::f64);
    for (Coefficient* each : {&scale_, &shift_})
        if (each->wants_gradient()) each->sums = scratch(sums);
    const TensorPtr &given = outputs_[0]->diff, &wanted = input(0)->diff;
    touch(Pass::backward, given);
    if (scale_.wants_gradient()) touch(Pass::backward, input(0));
    if (added_ >= 0 && input_gradient(added_)) build_added_gradient();
    if (!wanted) return;
    touch(Pass::backward, wanted);
    if (is_shift())
        given->buffer->join(wanted->buffer);  // it passes the gradient on as it is
    else
        may_overwrite(Pass::backward, given, wanted);
}

// The gradient of what is added is that of the result: one buffer, if their layouts are equal.
void Affine::build_added_gradient() {
    const TensorPtr &given = outputs_[0]->diff, &wanted = input(added_)->diff;
    touch(Pass::backward, wanted);
    if (given->layout == wanted->layout && !spec_.keep_all)
        given->buffer->join(wanted->buffer);
    else
        backward_calls_.push_back(reorder(given->memory, wanted->memory));
}

// Returns a coefficient as the kernels read it, with padded channels; `missing` if there is no tensor.
PerChannel Affine::pad(const Coefficient& coefficient, const std::vector<float>& missing) const {
    const TensorPtr& tensor = coefficient.tensor;
    if (!tensor) return all(missing);
    float* const padded = address<float>(coefficient.padded);
    if (tensor->is_bf16())
        pad_channels(rows_, address<bf16>(tensor), copies_, padded);
    else
        pad_channels(rows_, tensor->data(), copies_, padded);
    return {padded, copies_ > 1 ? rows_.padded_channels() : 0};
}

template <typename T>
void Affine::values() const {
    AffineTerms<T> terms{all(zeros_), pad(scale_, ones_), pad(shift_, zeros_)};
    if (added_ >= 0) {
        terms.other = address<T>(added_values_);
        terms.weight = all(ones_);
    }
    affine_rows(rows_, address<T>(input(0)), terms, address<T>(outputs_[0]));
}

template <typename T>
void Affine::gradients() const {
    const auto sums = [](const Coefficient& of) { return of.wants_gradient() ? address<double>(of.sums) : nullptr; };
    affine_gradients(rows_, address<T>(outputs_[0]->diff), address<T>(input(0)), pad(scale_, ones_),
                     input_gradient(0) && !is_shift() ? address<T>(input(0)->diff) : nullptr, sums(scale_),
                     sums(shift_));
}

void Affine::forward(const dnnl::stream& stream) {
    run(forward_calls_, stream);
    input(0)->is_bf16() ? values<bf16>() : values<float>();
}

void Affine::backward(const dnnl::stream& stream) {
    run(backward_calls_, stream);
    input(0)->is_bf16() ? gradients<bf16>() : gradients<float>();
    for (const Coefficient* each : {&scale_, &shift_})
        if (each->wants_gradient()) write_gradient(*each);
}

void Affine::write_gradient(const Coefficient& coefficient) const {
    const TensorPtr& diff = coefficient.tensor->diff;
    diff->is_bf16() ? write_sums<bf16>(address<double>(coefficient.sums), diff)
                    : write_sums<float>(address<double>(coefficient.sums), diff);
}

// Writes, or adds, the sums over n as the gradient of a coefficient: of each copy for itself.
template <typename T>
void Affine::write_sums(const double* sums, const TensorPtr& diff) const {
    const int64_t padded = rows_.padded_channels(), terms = rows_.outer / copies_;
    T* into = address<T>(diff);
    for (int64_t copy = 0; copy < copies_; copy++, sums += padded, into += rows_.channels) {
        for (int64_t channel = 0; channel < rows_.channels; channel++) {
            double total = 0;
            for (int64_t n = 0; n < terms; n++) total += sums[n * padded + channel];
            store(float(total) + (diff->accumulate ? number(into[channel]) : 0.f), into[channel]);
        }
    }
}

}  // namespace engine
