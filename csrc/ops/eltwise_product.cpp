// The product of several blobs. inputs: two or more.
#include "kernels/vectorised.h"
#include "ops/common/eltwise.h"

namespace engine {
namespace {

ENGINE_VECTORISED void multiply(const float* a, const float* b, float* y, int64_t length) {
#pragma omp simd
    for (int64_t i = 0; i < length; i++) y[i] = a[i] * b[i];
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
        const auto times = [](size_t, const float* a, const float* b, float* y, int64_t, int64_t length) {
            multiply(a, b, y, length);
        };
        run(forward_calls_, stream);
        fold_chunks(x_, y_, count_, times);
    }

    // Each gradient is that of y times all the other inputs, which holds where an input is zero, too.
    void backward(const dnnl::stream& stream) override {
        run(backward_reads_, stream);
        write_gradients(stream, [&](size_t i, const float* given, float* into, int64_t begin, int64_t length) {
            alignas(64) float x[chunk_size];
            const float* so_far = given;
            for (size_t j = 0; j < backward_x_.size(); j++) {
                if (j == i) continue;
                multiply(so_far, backward_x_[j].read(begin, length, x), into, length);
                so_far = into;
            }
        });
    }

private:
    std::vector<Numbers> backward_x_;
    Calls backward_reads_;
};

static const RegisterOp<EltwiseProduct> registered("EltwiseProduct");

}  // namespace
}  // namespace engine
