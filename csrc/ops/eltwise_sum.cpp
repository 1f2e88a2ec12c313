// The weighted sum of several blobs. inputs: two or more; attributes: coefficients (one per input), relu (what is
// negative becomes 0).
#include "ops/common/eltwise.h"

namespace engine {
namespace {

// The gradient of a coefficient times x behind a ReLU whose result is y.
template <typename T>
ENGINE_VECTORISED void pass_positive(const T* y, const T* given, float coefficient, T* into, int64_t length) {
#pragma omp simd
    for (int64_t i = 0; i < length; i++) {
        const float gradient = coefficient * number(given[i]);
        store(number(y[i]) > 0 ? gradient : 0.f, into[i]);
    }
}

class EltwiseSum : public Eltwise {
public:
    explicit EltwiseSum(OpSpec spec) : Eltwise(std::move(spec)), relu_(spec_.attributes.flag("relu")) {
        for (double coefficient : spec_.attributes.reals("coefficients")) coefficients_.push_back(float(coefficient));
        if (!needs_backward() || !output_gradient(0)) return;
        if (relu_) touch(Pass::backward, outputs_[0]);
        // Inputs that are summed as they are have one gradient in common: one buffer, which without ReLU is that of the
        // sum. Not where each is to be kept.
        TensorPtr common = relu_ ? nullptr : outputs_[0]->diff;
        for (size_t i = 0; i < x_.size(); i++) {
            if (!input_gradient(i)) continue;
            const bool as_it_is = coefficients_[i] == 1 && input(i)->layout == layout_ && !spec_.keep_all;
            if (as_it_is && common) {
                common->buffer->join(input(i)->diff->buffer);
                continue;
            }
            want_gradient(i);
            if (as_it_is) common = input(i)->diff;
        }
    }

    void forward(const dnnl::stream& stream) override {
        run(forward_calls_, stream);
        weighted_sum(x_, coefficients_, y_, relu_);
    }

    void backward(const dnnl::stream& stream) override {
        write_gradients(stream, [&](size_t i, const auto* given, auto* into, int64_t begin, int64_t length) {
            using T = std::decay_t<decltype(*into)>;
            if (relu_)
                pass_positive(y_.as<T>() + begin, given, coefficients_[i], into, length);
            else
                scaled(given, coefficients_[i], no_floor, into, length);
        });
    }

private:
    std::vector<float> coefficients_;
    bool relu_;
};

static const RegisterOp<EltwiseSum> registered("EltwiseSum");

}  // namespace
}  // namespace engine
