// Computes the maximum of several blobs. inputs, outputs: see eltwise.h.
#include <cstring>
#include <stdexcept>

#include "kernels/vectorised.h"
#include "ops/common/eltwise.h"

namespace engine {
namespace {

// Sets y to x and `which` to `index` where x reaches `bar` or, with `strict`, exceeds it; y to `bar` elsewhere.
template <typename A, typename B, typename Y>
ENGINE_VECTORISED void raise(const A* bar, const B* x, bool strict, uint8_t index, Y* y, uint8_t* which,
                             int64_t length) {
#pragma omp simd
    for (int64_t i = 0; i < length; i++) {
        const float low = number(bar[i]), value = number(x[i]);
        const bool higher = strict ? value > low : !(low > value);
        store(higher ? value : low, y[i]);
        which[i] = higher ? index : which[i];
    }
}

template <typename T>
ENGINE_VECTORISED void select(const T* x, const uint8_t* which, uint8_t index, T* y, int64_t length) {
#pragma omp simd
    for (int64_t i = 0; i < length; i++) {
        const float value = number(x[i]);  // read in any case, so that the loop can be vectorised
        store(which[i] == index ? value : 0.f, y[i]);
    }
}

class EltwiseMax : public Eltwise {
public:
    explicit EltwiseMax(OpSpec spec) : Eltwise(std::move(spec)) {
        if (x_.size() > 256) throw std::invalid_argument("the maximum of more than 256 blobs");
        which_ = workspace("which", plain_layout({count_}, memory::data_type::u8));
        touch(Pass::forward, which_);
        if (!needs_backward() || !output_gradient(0)) return;
        touch(Pass::backward, which_);
        for (size_t i = 0; i < x_.size(); i++)
            if (input_gradient(i)) want_gradient(i);
    }

    // Of equal inputs, the one that Caffe chooses gets the gradient: the second of the first two, else the earlier one.
    void forward(const dnnl::stream& stream) override {
        uint8_t* const which = address<uint8_t>(which_);
        run(forward_calls_, stream);
        fold_chunks(x_, y_, [&](size_t i, const auto* a, const auto* b, auto* y, int64_t begin, int64_t length) {
            if (i == 1) std::memset(which + begin, 0, length);
            raise(a, b, i > 1, uint8_t(i), y, which + begin, length);
        });
    }

    void backward(const dnnl::stream& stream) override {
        const uint8_t* const which = address<uint8_t>(which_);
        write_gradients(stream, [&](size_t i, const auto* given, auto* into, int64_t begin, int64_t length) {
            select(given, which + begin, uint8_t(i), into, length);
        });
    }

private:
    TensorPtr which_;
};

static const RegisterOp<EltwiseMax> registered("EltwiseMax");

}  // namespace
}  // namespace engine
