// A base for functions of one number that oneDNN does not have, or not with Caffe's parameters or values at the edges.
#pragma once

#include <cmath>

#include "kernels/vectorised.h"
#include "ops/common/channel_layout.h"
#include "ops/common/elementwise.h"

namespace engine {

template <typename Function, typename T>
ENGINE_VECTORISED void function_values(Function function, const T* x, T* y, int64_t length) {
#pragma omp simd
    for (int64_t i = 0; i < length; i++) store(function.value(number(x[i])), y[i]);
}

template <typename Function, typename T>
ENGINE_VECTORISED void function_gradients(Function function, const T* known, const T* given, T* wanted,
                                          int64_t length) {
#pragma omp simd
    for (int64_t i = 0; i < length; i++) store(number(given[i]) * function.slope(number(known[i])), wanted[i]);
}

// A Function is made from the attributes. It has value(x) and slope(known), its derivative; `known` is its result if
// Function::from_result, else x.
// inputs: x, float32 or bf16, in any layout; outputs: as x.
template <typename Function>
class Unary : public Op {
public:
    explicit Unary(OpSpec spec) : Op(std::move(spec)), function_(spec_.attributes) {
        padded_ = padded_rows(input(0)->layout);
        x_ = input(0)->memory;
        y_ = output(0, input(0)->layout)->memory;
        touch(Pass::forward, {input(0), outputs_[0]});
        may_overwrite(Pass::forward, input(0), outputs_[0]);
        if (!input_gradient(0) || !output_gradient(0)) return;
        const TensorPtr &given = outputs_[0]->diff, &wanted = input(0)->diff;
        given_ = given->memory;
        wanted_ = wanted->memory;
        touch(Pass::backward, {Function::from_result ? outputs_[0] : input(0), given, wanted});
        may_overwrite(Pass::backward, given, wanted);
    }

    void forward(const dnnl::stream&) override {
        x_.typed([this](auto type) {
            using T = decltype(type);
            const T* const x = x_.as<T>();
            T* const y = y_.as<T>();
            in_chunks(x_.count(),
                      [&](int64_t begin, int64_t length) { function_values(function_, x + begin, y + begin, length); });
        });
        if (padded_) y_.clear_padding(*padded_);
    }

    void backward(const dnnl::stream&) override {
        if (touched(Pass::backward).empty()) return;  // a function without a gradient
        const Numbers& from = Function::from_result ? y_ : x_;
        given_.typed([this, &from](auto type) {
            using T = decltype(type);
            const T *const known = from.as<T>(), *const given = given_.as<T>();
            T* const wanted = wanted_.as<T>();
            in_chunks(given_.count(), [&](int64_t begin, int64_t length) {
                function_gradients(function_, known + begin, given + begin, wanted + begin, length);
            });
        });
        if (padded_) wanted_.clear_padding(*padded_);
    }

private:
    Function function_;
    std::optional<ChannelRows> padded_;  // if there is padding, which is set to 0 again: f(0) may be another number
    Numbers x_, y_, given_, wanted_;
};

}  // namespace engine
