// Computes the product of several blobs. inputs, outputs: see eltwise.h.
#include "kernels/vectorised.h"
#include "ops/common/eltwise.h"

namespace engine {
namespace {

template <typename A, typename B, typename Y>
ENGINE_VECTORISED void multiply(const A* a, const B* b, Y* y, int64_t length) {
#pragma omp simd
    for (int64_t i = 0; i < length; i++) store(number(a[i]) * number(b[i]), y[i]);
}

class EltwiseProduct : public Eltwise {
public:
    explicit EltwiseProduct(OpSpec spec) : Eltwise(std::move(spec)) {
        if (!needs_backward() || !output_gradient(0)) return;
        for (const auto& tensor : spec_.inputs) {
            backward_x_.emplace_back(reading(tensor, layout_, backward_reads_));
            touch(Pass::backward, tensor);
        }
        for (size_t i = 0; i < x_.size(); i++)
            if (input_gradient(i)) want_gradient(i);
    }

    void forward(const dnnl::stream& stream) override {
        run(forward_calls_, stream);
        fold_chunks(x_, y_, [](size_t, const auto* a, const auto* b, auto* y, int64_t, int64_t length) {
            multiply(a, b, y, length);
        });
    }

    // An input's gradient is y's times all other inputs: not y / x, which fails where x is zero.
    void backward(const dnnl::stream& stream) override {
        run(backward_reads_, stream);
        write_gradients(stream, [&](size_t i, const auto* given, auto* into, int64_t begin, int64_t length) {
            using T = std::decay_t<decltype(*into)>;
            const auto at = [&](size_t j) {
                return j == 0 ? given : backward_x_[j <= i ? j - 1 : j].template as<T>() + begin;
            };
            fold(backward_x_.size(), at, into,
                 [&](size_t, const auto* a, const auto* b, auto* y) { multiply(a, b, y, length); });
        });
    }

private:
    std::vector<Numbers> backward_x_;
    Calls backward_reads_;
};

static const RegisterOp<EltwiseProduct> registered("EltwiseProduct");

}  // namespace
}  // namespace engine
