#include "ops/common/recurrence.h"

#include <algorithm>

namespace engine {

static float* floats_of(const memory& memory) { return static_cast<float*>(memory.get_data_handle()); }

Recurrence::Recurrence(OpSpec spec, size_t states)
    : Op(std::move(spec)),
      steps_(input(1)->shape.at(0)),
      batch_(input(1)->shape.at(1)),
      hidden_(spec_.output_shapes.at(0).back()),
      width_(input(0)->shape.at(1)),
      states_(states),
      clip_(float(spec_.attributes.real("clip", 0))),
      has_static_(spec_.attributes.flag("static")),
      first_state_(2 + size_t(has_static_)),
      first_(states, std::vector<float>(batch_ * hidden_)),
      last_(first_) {
    states_[0] = output(0, plain_layout(spec_.output_shapes[0]));
    for (size_t k = 1; k < states; k++) states_[k] = workspace("states", plain_layout({steps_, batch_, hidden_}));
    source_ = workspace("source", plain_layout({steps_ * batch_, hidden_}));
    for (size_t i = 1; i < outputs_.size(); i++) touch(Pass::forward, output(i, plain_layout(spec_.output_shapes[i])));
    for (const auto& each : spec_.inputs) touch(Pass::forward, each);
    for (const auto& each : states_) touch(Pass::forward, each);
    touch(Pass::forward, source_);
    build_forward();
    if (needs_backward()) build_backward();
}

void Recurrence::build_forward() {
    const auto type = memory::data_type::f32;
    const Layout source = plain_layout({batch_, hidden_}), product = plain_layout({batch_, width_});
    hint_ = dnnl::inner_product_forward::primitive_desc(
        cpu(), forward_kind(spec_), source, any_layout({width_, hidden_}, type), product, user_scratchpad());
    source_step_ = memory(source, cpu(), DNNL_MEMORY_NONE);
    product_ = scratch(product);
    step_forward_.push_back({dnnl::inner_product_forward(hint_),
                             {{DNNL_ARG_SRC, source_step_},
                              {DNNL_ARG_WEIGHTS, reading_param(0, hint_.weights_desc(), forward_calls_)},
                              {DNNL_ARG_DST, product_},
                              {DNNL_ARG_SCRATCHPAD, scratch(hint_.scratchpad_desc())}}});
    implementation_ = hint_.impl_info_str();
}

void Recurrence::build_backward() {
    const auto type = memory::data_type::f32;
    const Layout rows = plain_layout({steps_ * batch_, width_}), step = plain_layout({batch_, width_});
    const Layout state = plain_layout({batch_, hidden_}), matrix = any_layout({width_, hidden_}, type);
    fresh_scratch();
    for (size_t k = 0; k < states_.size(); k++) gradients_.push_back(scratch(state));
    drive_gradients_ = input_gradient(0) ? input(0)->diff->memory : scratch(rows);
    drive_gradient_step_ = memory(step, cpu(), DNNL_MEMORY_NONE);
    const dnnl::inner_product_backward_data::primitive_desc data(cpu(), state, matrix, step, hint_, user_scratchpad());
    step_backward_.push_back({dnnl::inner_product_backward_data(data),
                              {{DNNL_ARG_DIFF_DST, drive_gradient_step_},
                               {DNNL_ARG_WEIGHTS, reading_param(0, data.weights_desc(), backward_calls_)},
                               {DNNL_ARG_DIFF_SRC, gradients_[0]},
                               {DNNL_ARG_SCRATCHPAD, scratch(data.scratchpad_desc())}}});
    if (param_gradient(0)) {
        const dnnl::inner_product_forward::primitive_desc hint(cpu(), prop_kind::forward_training, source_->layout,
                                                               matrix, rows);
        const dnnl::inner_product_backward_weights::primitive_desc pd(cpu(), source_->layout, matrix, rows, hint,
                                                                      user_scratchpad());
        const Target target = writing_gradient(0, pd.diff_weights_desc());
        finish_backward_.push_back({dnnl::inner_product_backward_weights(pd),
                                    {{DNNL_ARG_SRC, source_->memory},
                                     {DNNL_ARG_DIFF_DST, drive_gradients_},
                                     {DNNL_ARG_DIFF_WEIGHTS, target.memory},
                                     {DNNL_ARG_SCRATCHPAD, scratch(pd.scratchpad_desc())}}});
        finish(target, finish_backward_);
    }
    touch(Pass::backward, {input(1), source_});
    for (const auto& each : states_) touch(Pass::backward, each);
    for (const auto& each : spec_.inputs)
        if (each->diff) touch(Pass::backward, each->diff);
    for (const auto& each : outputs_)
        if (each->diff) touch(Pass::backward, each->diff);
}

void Recurrence::begin() {
    for (size_t k = 0; k < states_.size(); k++) {
        const float* const from = exposed() ? input(first_state_ + k)->data() : last_[k].data();
        std::copy_n(from, batch_ * hidden_, first_[k].data());
    }
}

void Recurrence::end() {
    for (size_t k = 0; k < states_.size(); k++) {
        float* const to = exposed() ? outputs_[1 + k]->data() : last_[k].data();
        std::copy_n(after(k, steps_ - 1, 0), batch_ * hidden_, to);
    }
}

void Recurrence::forward(const dnnl::stream& stream) {
    run(forward_calls_, stream);
    begin();
    for (int64_t t = 0; t < steps_; t++) {
        float* const source = source_->data() + t * batch_ * hidden_;
        for (int64_t n = 0; n < batch_; n++)
            for (int64_t d = 0; d < hidden_; d++) source[n * hidden_ + d] = cont(t, n) * before(0, t, n)[d];
        source_step_.set_data_handle(source);
        run(step_forward_, stream);
#pragma omp parallel for
        for (int64_t n = 0; n < batch_; n++) {
            float* const drive = floats_of(product_) + n * width_;
            const float* const own = input(0)->data() + (t * batch_ + n) * width_;
            for (int64_t k = 0; k < width_; k++) drive[k] += own[k];
            if (has_static_)
                for (int64_t k = 0; k < width_; k++) drive[k] += input(2)->data()[n * width_ + k];
            advance(t, n, drive);
        }
    }
    end();
}

void Recurrence::backward(const dnnl::stream& stream) {
    run(backward_calls_, stream);
    for (size_t k = 0; k < states_.size(); k++) {
        if (exposed() && output_gradient(1 + k))
            std::copy_n(outputs_[1 + k]->diff->data(), batch_ * hidden_, gradient(k, 0));
        else
            std::fill_n(gradient(k, 0), batch_ * hidden_, 0.f);
    }
    for (int64_t t = steps_ - 1; t >= 0; t--) {
        float* const step = floats_of(drive_gradients_) + t * batch_ * width_;
#pragma omp parallel for
        for (int64_t n = 0; n < batch_; n++) {
            if (output_gradient(0)) {
                const float* const given = outputs_[0]->diff->data() + (t * batch_ + n) * hidden_;
                for (int64_t d = 0; d < hidden_; d++) gradient(0, n)[d] += given[d];
            }
            retreat(t, n, step + n * width_);
            if (clip_ > 0)
                for (int64_t g = n * width_; g < (n + 1) * width_; g++) step[g] = std::clamp(step[g], -clip_, clip_);
        }
        drive_gradient_step_.set_data_handle(step);
        run(step_backward_, stream);
        for (int64_t n = 0; n < batch_; n++)
            for (int64_t d = 0; d < hidden_; d++) gradient(0, n)[d] *= cont(t, n);
    }
    run(finish_backward_, stream);
    write_gradients();
}

// Of the inputs that are the same for all steps.
void Recurrence::write_gradients() {
    if (has_static_ && input_gradient(2)) {
        const int64_t size = batch_ * width_;
        float* const sums = input(2)->diff->data();
        const float* const terms = floats_of(drive_gradients_);
#pragma omp parallel for
        for (int64_t i = 0; i < size; i++) {
            sums[i] = 0;
            for (int64_t t = 0; t < steps_; t++) sums[i] += terms[t * size + i];
        }
    }
    if (!exposed()) return;
    for (size_t k = 0; k < states_.size(); k++)
        if (input_gradient(first_state_ + k))
            std::copy_n(gradient(k, 0), batch_ * hidden_, input(first_state_ + k)->diff->data());
}

}  // namespace engine
