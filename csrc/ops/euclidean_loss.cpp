// Computes half the mean squared distance, sum (a - b)^2 / 2N. Both inputs can have a gradient.
// inputs: a (N, ...), b (as many elements); outputs, further attributes: see row_loss.h.
#include "kernels/double_sums.h"
#include "ops/common/row_loss.h"

namespace engine {
namespace {

class EuclideanLoss : public RowLoss {
public:
    explicit EuclideanLoss(OpSpec spec) : RowLoss(std::move(spec)) {}

    void forward(const dnnl::stream&) override {
        const float* const a = input(0)->data();
        const float* const b = input(1)->data();
        add_up_elements(
            [=](int64_t begin, int64_t end) { return squared_distance(a + begin, b + begin, end - begin) / 2; });
    }

    void backward(const dnnl::stream&) override {
        if (input_gradient(0)) differentiate(gradient_scale(), input(0)->diff->data());
        if (input_gradient(1)) differentiate(-gradient_scale(), input(1)->diff->data());
    }

private:
    void differentiate(float scale, float* diff) const {
        const float* const a = input(0)->data();
        const float* const b = input(1)->data();
        const int64_t count = rows_ * row_;
#pragma omp parallel for simd
        for (int64_t k = 0; k < count; k++) diff[k] = scale * (a[k] - b[k]);
    }
};

static const RegisterOp<EuclideanLoss> registered("EuclideanLoss");

}  // namespace
}  // namespace engine
