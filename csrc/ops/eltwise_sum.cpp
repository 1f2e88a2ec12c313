// Computes the weighted sum of several blobs.
// inputs, outputs: see eltwise.h; attributes: coefficients (one for each input), relu (negative sums become 0).
#include "ops/common/eltwise.h"

namespace engine {
namespace {

// Computes the gradient of x before a ReLU of a sum with coefficient x; y is its result.
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
        // Inputs with coefficient 1 have the same gradient, which without ReLU is that of the sum: it is one buffer,
        // unless each blob must keep its own.
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
