// Functions of one number that oneDNN has not, or not with Caffe's parameters or values at the edges.
#pragma once

#include <cmath>

#include "kernels/vectorised.h"
#include "ops/common/channel_layout.h"
#include "ops/common/elementwise.h"

namespace engine {

template <typename Function>
ENGINE_VECTORISED void function_values(Function function, const float* x, float* y, int64_t length) {
#pragma omp simd
    for (int64_t i = 0; i < length; i++) y[i] = function.value(x[i]);
}

template <typename Function>
ENGINE_VECTORISED void function_gradients(Function function, const float* known, const float* given, float* wanted,
                                          int64_t length) {
#pragma omp simd
    for (int64_t i = 0; i < length; i++) wanted[i] = given[i] * function.slope(known[i]);
}

// A Function is made from the attributes. It has value(x) and slope(known), its derivative, where `known` is its result
// if `from_result`, else x. inputs: x.
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
        in_chunks(x_.count(), [this](int64_t begin, int64_t length) {
            alignas(64) float buffer[chunk_size];
            const float* const x = x_.read(begin, length, buffer);
            float* const y = y_.open(begin, buffer);
            function_values(function_, x, y, length);
            y_.close(begin, length, y);
        });
        if (padded_) y_.clear_padding(*padded_);
    }

    void backward(const dnnl::stream&) override {
        if (touched(Pass::backward).empty()) return;  // a function without a gradient
        const Numbers& from = Function::from_result ? y_ : x_;
        in_chunks(from.count(), [this, &from](int64_t begin, int64_t length) {
            alignas(64) float buffers[2][chunk_size];
            const float* const known = from.read(begin, length, buffers[0]);
            const float* const given = given_.read(begin, length, buffers[1]);
            float* const wanted = wanted_.open(begin, buffers[1]);
            function_gradients(function_, known, given, wanted, length);
            wanted_.close(begin, length, wanted);
        });
        if (padded_) wanted_.clear_padding(*padded_);
    }

private:
    Function function_;
    std::optional<ChannelRows> padded_;  // what the function makes of the zeros there is none of it
    Numbers x_, y_, given_, wanted_;
};

}  // namespace engine
