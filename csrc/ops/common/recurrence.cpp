#include "ops/common/recurrence.h"

#include <algorithm>

#include "kernels/add_row.h"
#include "kernels/chunks.h"
#include "kernels/sum_columns.h"
#include "kernels/vectorised.h"
#include "ops/common/long_product.h"

namespace engine {
namespace {

template <typename Number>
ENGINE_VECTORISED void scale_row(float factor, const float* x, Number* y, int64_t length) {
#pragma omp simd
    for (int64_t i = 0; i < length; i++) store(factor * x[i], y[i]);
}

ENGINE_VECTORISED void clip_row(float limit, float* x, int64_t length) {
#pragma omp simd
    for (int64_t i = 0; i < length; i++) x[i] = x[i] < -limit ? -limit : x[i] > limit ? limit : x[i];
}

// Returns row `index` of a memory of rows that are `length` numbers long.
template <typename Number>
Number* row_of(const memory& rows, int64_t index, int64_t length) {
    return address<Number>(rows) + index * length;
}

// Calls work(row) with row `index`, of bf16 if `narrow`, else of float.
template <typename Work>
void with_row(bool narrow, const memory& rows, int64_t index, int64_t length, const Work& work) {
    if (narrow)
        work(row_of<bf16>(rows, index, length));
    else
        work(row_of<float>(rows, index, length));
}

// Returns where step t begins in the rows of all steps. count: the numbers of a step.
void* at_step(bool narrow, const memory& rows, int64_t t, int64_t count) {
    return address<char>(rows) + t * count * int64_t(narrow ? sizeof(bf16) : sizeof(float));
}

// Returns the post-ops of products that are added to what the result holds.
dnnl::post_ops adding() {
    dnnl::post_ops post;
    post.append_sum(1.f);
    return post;
}

}  // namespace

Recurrence::Recurrence(OpSpec spec, size_t states, std::vector<Product> products)
    : Op(std::move(spec)),
      steps_(input(1)->shape.at(0)),
      batch_(input(1)->shape.at(1)),
      hidden_(spec_.output_shapes.at(0).back()),
      width_(input(0)->shape.at(1)),
      type_(input(0)->layout.get_data_type()),
      states_(states),
      clip_(float(spec_.attributes.real("clip", 0))),
      has_static_(spec_.attributes.flag("static")),
      first_state_(2 + size_t(has_static_)),
      first_(states, std::vector<float>(batch_ * hidden_)),
      last_(first_) {
    states_[0] = output(0, plain_layout(spec_.output_shapes[0]));
    for (size_t k = 1; k < states; k++) states_[k] = workspace("states", plain_layout({steps_, batch_, hidden_}));
    for (size_t i = 1; i < outputs_.size(); i++) touch(Pass::forward, output(i, plain_layout(spec_.output_shapes[i])));
    for (const auto& each : spec_.inputs) touch(Pass::forward, each);
    for (const auto& each : states_) touch(Pass::forward, each);
    for (size_t i = 0; i < spec_.params.size(); i++) plain_param(i);
    hidden_sources_ = workspace("source", plain_layout({steps_ * batch_, hidden_}, type_));
    for (auto& each : products) {
        const int64_t outputs = int64_t(each.matrices.size()) * param(each.matrices[0])->shape[0];
        multiplications_.push_back({std::move(each), outputs});
        build_forward(multiplications_.back());
    }
    if (needs_backward()) build_backward();
}

// Returns the matrices of a product, one above the other, as one matrix. layout: how it is seen, row-major or
// transposed.
memory Recurrence::matrix(const Product& product, const Layout& layout, Calls& calls) {
    if (product.matrices.size() == 1) return param(product.matrices[0])->as(layout);
    const memory whole = scratch(layout);
    std::vector<TensorPtr> matrices;
    for (const size_t i : product.matrices) matrices.push_back(param(i));
    add_own(calls, [matrices, whole] {
        float* to = address<float>(whole);
        for (const auto& each : matrices) to = std::copy_n(each->data(), each->count(), to);
    });
    return whole;
}

// Returns a matrix in the layout `wanted` of a kernel. stays: whether the copy has memory of its own, and not scratch.
memory Recurrence::packed(const memory& given, const Layout& wanted, bool stays, Calls& calls) {
    if (given.get_desc() == wanted && !stays) return given;
    const memory result = stays ? memory(wanted, cpu()) : scratch(wanted);
    calls.push_back(reorder(given, result));
    return result;
}

void Recurrence::build_forward(Multiplication& m) {
    const Layout source = plain_layout({batch_, hidden_}, type_), result = plain_layout({batch_, m.outputs});
    const dnnl::matmul::primitive_desc pd(cpu(), source, any_layout({hidden_, m.outputs}, type_), result,
                                          user_scratchpad());
    m.sources = hidden_sources_;
    if (!m.product.of_hidden) m.sources = workspace("source", hidden_sources_->layout);
    touch(Pass::forward, m.sources);
    m.source_step = memory(source, cpu(), DNNL_MEMORY_NONE);
    m.result = scratch(result);
    const Layout transposed({hidden_, m.outputs}, memory::data_type::f32, Dims{1, hidden_});
    const memory weights = matrix(m.product, transposed, forward_calls_);
    m.multiply.push_back({dnnl::matmul(pd),
                          {{DNNL_ARG_SRC, m.source_step},
                           {DNNL_ARG_WEIGHTS, packed(weights, pd.weights_desc(), constant(), forward_calls_)},
                           {DNNL_ARG_DST, m.result},
                           {DNNL_ARG_SCRATCHPAD, scratch(pd.scratchpad_desc())}}});
    implementation_ = pd.impl_info_str();
}

void Recurrence::build_backward() {
    fresh_scratch();
    for (size_t k = 0; k < states_.size(); k++) gradients_.push_back(scratch(plain_layout({batch_, hidden_})));
    if (input_gradient(0))
        drive_gradients_ = input(0)->diff->memory;
    else if (multiplications_.size() == 1 || (has_static_ && input_gradient(2)))
        drive_gradients_ = scratch(plain_layout({steps_ * batch_, width_}, type_));
    for (auto& m : multiplications_) build_backward(m);
    for (auto& m : multiplications_) build_weight_gradient(m);
    touch(Pass::backward, {input(1), hidden_sources_});
    for (const auto& each : states_) touch(Pass::backward, each);
    for (const auto& each : spec_.inputs)
        if (each->diff) touch(Pass::backward, each->diff);
    for (const auto& each : outputs_)
        if (each->diff) touch(Pass::backward, each->diff);
}

// Builds the product of one step back, which makes the gradient of the source from that of the result.
void Recurrence::build_backward(Multiplication& m) {
    const Layout step = plain_layout({batch_, m.outputs}, type_), source = plain_layout({batch_, hidden_});
    primitive_attr attr = user_scratchpad();
    if (m.product.of_hidden) attr.set_post_ops(adding());
    const dnnl::matmul::primitive_desc pd(cpu(), step, any_layout({m.outputs, hidden_}, type_), source, attr);
    m.gradients =
        multiplications_.size() == 1 ? drive_gradients_ : scratch(plain_layout({steps_ * batch_, m.outputs}, type_));
    if (is_narrow()) m.wide_gradients = scratch(plain_layout({batch_, m.outputs}));
    m.source_gradients = m.product.of_hidden ? gradients_[0] : scratch(source);
    m.gradient_step = memory(step, cpu(), DNNL_MEMORY_NONE);
    const memory weights = matrix(m.product, plain_layout({m.outputs, hidden_}), backward_calls_);
    m.multiply_back.push_back({dnnl::matmul(pd),
                               {{DNNL_ARG_SRC, m.gradient_step},
                                {DNNL_ARG_WEIGHTS, packed(weights, pd.weights_desc(), false, backward_calls_)},
                                {DNNL_ARG_DST, m.source_gradients},
                                {DNNL_ARG_SCRATCHPAD, scratch(pd.scratchpad_desc())}}});
    touch(Pass::backward, m.sources);
}

// Builds the gradients of a product's matrices: one product over all steps.
void Recurrence::build_weight_gradient(Multiplication& m) {
    std::vector<TensorPtr> wanted;
    for (const size_t i : m.product.matrices) wanted.push_back(param_gradient(i) ? param(i)->diff : nullptr);
    if (std::count(wanted.begin(), wanted.end(), nullptr) == int64_t(wanted.size())) return;
    const bool alone = wanted.size() == 1;
    primitive_attr attr = user_scratchpad();
    if (alone && wanted[0]->accumulate) attr.set_post_ops(adding());
    const Layout across({m.outputs, steps_ * batch_}, type_, Dims{1, m.outputs});
    const Layout result = plain_layout({m.outputs, hidden_});
    const dnnl::matmul::primitive_desc pd = long_product(across, m.sources->layout, result, attr);
    m.gradients_across = memory(across, cpu(), DNNL_MEMORY_NONE);
    const memory into = alone ? wanted[0]->as(result) : scratch(result);
    finish_.push_back({dnnl::matmul(pd),
                       {{DNNL_ARG_SRC, m.gradients_across},
                        {DNNL_ARG_WEIGHTS, m.sources->memory},
                        {DNNL_ARG_DST, into},
                        {DNNL_ARG_SCRATCHPAD, scratch(pd.scratchpad_desc())}}});
    if (alone) return;
    add_own(finish_, [wanted, into, size = m.outputs * hidden_ / int64_t(wanted.size())] {
        for (size_t i = 0; i < wanted.size(); i++) {
            if (!wanted[i]) continue;
            const float* const from = row_of<float>(into, int64_t(i), size);
            wanted[i]->accumulate ? add_row(from, wanted[i]->data(), size)
                                  : void(std::copy_n(from, size, wanted[i]->data()));
        }
    });
}

void Recurrence::sum_result_gradients(size_t k, size_t i) {
    if (!param_gradient(i)) return;
    const Multiplication& m = multiplications_[k];
    const int64_t rows = steps_ * batch_;
    add_own(finish_, [narrow = is_narrow(), rows, outputs = m.outputs, gradients = m.gradients, diff = param(i)->diff,
                      of_blocks = scratch(plain_layout({blocks_of(rows), m.outputs}))] {
        with_row(narrow, gradients, 0, outputs, [&](const auto* given) {
            sum_columns(given, rows, outputs, address<float>(of_blocks), diff->data(), diff->accumulate);
        });
    });
}

uint64_t Recurrence::writes() const {
    uint64_t count = 0;
    for (const auto& each : spec_.params) count += each->writes();
    return count;
}

void Recurrence::add_drive(int64_t t, int64_t n, int64_t begin, int64_t length, float* row) const {
    with_row(is_narrow(), input(0)->memory, t * batch_ + n, width_,
             [&](const auto* drive) { add_row(drive + begin, row, length); });
    if (has_static_) add_row(input(2)->data() + n * width_ + begin, row, length);
}

void Recurrence::set_source(size_t k, int64_t t, int64_t n, const float* row) const {
    with_row(is_narrow(), multiplications_[k].sources->memory, t * batch_ + n, hidden_,
             [&](auto* into) { scale_row(1, row, into, hidden_); });
}

void Recurrence::set_hidden_source(int64_t t, int64_t n) const {
    with_row(is_narrow(), hidden_sources_->memory, t * batch_ + n, hidden_,
             [&](auto* into) { scale_row(cont(t, n), before(0, t, n), into, hidden_); });
}

float* Recurrence::source_gradient(size_t k, int64_t n) const {
    return row_of<float>(multiplications_[k].source_gradients, n, hidden_);
}

float* Recurrence::result_gradient(size_t k, int64_t t, int64_t n) const {
    const Multiplication& m = multiplications_[k];
    if (is_narrow()) return row_of<float>(m.wide_gradients, n, m.outputs);
    return row_of<float>(m.gradients, t * batch_ + n, m.outputs);
}

void Recurrence::close_gradient(size_t k, int64_t t, int64_t n) const {
    const Multiplication& m = multiplications_[k];
    float* const row = result_gradient(k, t, n);
    if (clip_ > 0) clip_row(clip_, row, m.outputs);
    if (is_narrow()) scale_row(1, row, row_of<bf16>(m.gradients, t * batch_ + n, m.outputs), m.outputs);
}

void Recurrence::set_drive_gradient(int64_t t, int64_t n, int64_t begin, int64_t length, const float* row) const {
    if (!drive_gradients_) return;
    with_row(is_narrow(), drive_gradients_, t * batch_ + n, width_,
             [&](auto* into) { scale_row(1, row, into + begin, length); });
}

void Recurrence::begin() {
    for (size_t k = 0; k < states_.size(); k++) {
        const float* const from = exposed() ? input(first_state_ + k)->data() : last_[k].data();
        std::copy_n(from, batch_ * hidden_, first_[k].data());
    }
    for (int64_t n = 0; n < batch_; n++) set_hidden_source(0, n);
}

void Recurrence::end() {
    for (size_t k = 0; k < states_.size(); k++) {
        float* const to = exposed() ? outputs_[1 + k]->data() : last_[k].data();
        std::copy_n(after(k, steps_ - 1, 0), batch_ * hidden_, to);
    }
}

void Recurrence::forward(const dnnl::stream& stream) {
    if (!constant() || writes() != packed_at_) run(forward_calls_, stream);
    packed_at_ = writes();
    begin();
    const bool in_parallel = batch_ * width_ > chunk_size;
    for (int64_t t = 0; t < steps_; t++)
        for (size_t k = 0; k < multiplications_.size(); k++) {
            Multiplication& m = multiplications_[k];
            m.source_step.set_data_handle(at_step(is_narrow(), m.sources->memory, t, batch_ * hidden_));
            run(m.multiply, stream);
            const bool is_last = k + 1 == multiplications_.size();
#pragma omp parallel for if (in_parallel)
            for (int64_t n = 0; n < batch_; n++) {
                advance(k, t, n, row_of<float>(m.result, n, m.outputs));
                if (is_last && t + 1 < steps_) set_hidden_source(t + 1, n);
            }
        }
    end();
}

// Takes over the states if shapes agree; the number of steps may be another.
void Recurrence::succeed(const Op& op) {
    const auto* const before = dynamic_cast<const Recurrence*>(&op);
    if (before && before->states_.size() == states_.size() && before->batch_ == batch_ && before->hidden_ == hidden_)
        last_ = before->last_;
}

void Recurrence::begin_backward() {
    for (size_t k = 0; k < states_.size(); k++) {
        if (exposed() && output_gradient(1 + k))
            std::copy_n(outputs_[1 + k]->diff->data(), batch_ * hidden_, gradient(k, 0));
        else
            std::fill_n(gradient(k, 0), batch_ * hidden_, 0.f);
    }
}

// Sets the gradient of the hidden state after step t, which comes from the step after it and from the top.
void Recurrence::take_gradient(int64_t t, int64_t n) const {
    float* const row = gradient(0, n);
    if (t + 1 < steps_) scale_row(cont(t + 1, n), row, row, hidden_);
    if (output_gradient(0)) add_row(outputs_[0]->diff->data() + (t * batch_ + n) * hidden_, row, hidden_);
}

void Recurrence::backward(const dnnl::stream& stream) {
    run(backward_calls_, stream);
    begin_backward();
    const bool in_parallel = batch_ * width_ > chunk_size;
    const size_t last = multiplications_.size() - 1;
    for (int64_t t = steps_ - 1; t >= 0; t--)
        for (size_t k = last + 1; k-- > 0;) {
#pragma omp parallel for if (in_parallel)
            for (int64_t n = 0; n < batch_; n++) {
                if (k == last) take_gradient(t, n);
                retreat(k, t, n, result_gradient(k, t, n));
                close_gradient(k, t, n);
            }
            Multiplication& m = multiplications_[k];
            m.gradient_step.set_data_handle(at_step(is_narrow(), m.gradients, t, batch_ * m.outputs));
            run(m.multiply_back, stream);
        }
    for (int64_t n = 0; n < batch_; n++) scale_row(cont(0, n), gradient(0, n), gradient(0, n), hidden_);
    for (auto& m : multiplications_)
        if (m.gradients_across) m.gradients_across.set_data_handle(m.gradients.get_data_handle());
    run(finish_, stream);
    write_gradients();
}

// Writes the gradients of the inputs that are the same for all steps: the static one and the first states.
void Recurrence::write_gradients() {
    if (has_static_ && input_gradient(2)) {
        float* const sums = input(2)->diff->data();
        std::fill_n(sums, batch_ * width_, 0.f);
#pragma omp parallel for
        for (int64_t n = 0; n < batch_; n++)
            for (int64_t t = 0; t < steps_; t++)
                with_row(is_narrow(), drive_gradients_, t * batch_ + n, width_,
                         [&](const auto* row) { add_row(row, sums + n * width_, width_); });
    }
    if (!exposed()) return;
    for (size_t k = 0; k < states_.size(); k++)
        if (input_gradient(first_state_ + k))
            std::copy_n(gradient(k, 0), batch_ * hidden_, input(first_state_ + k)->diff->data());
}

}  // namespace engine
