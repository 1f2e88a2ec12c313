// Computes a plain recurrence over a sequence, h = tanh(drive + R h') with h' = cont h of the step before.
// inputs, outputs, attributes: see recurrence.h; the drive is (T N, H).
// params: R (H, H).
#include <algorithm>

#include "kernels/squash.h"
#include "ops/common/recurrence.h"

namespace engine {
namespace {

ENGINE_VECTORISED void forward_row(const float* drive, float* h, int64_t units) {
#pragma omp simd
    for (int64_t d = 0; d < units; d++) h[d] = squash(drive[d]);
}

ENGINE_VECTORISED void backward_row(const float* h, float* of_h, float* wanted, int64_t units) {
#pragma omp simd
    for (int64_t d = 0; d < units; d++) wanted[d] = of_h[d] * (1 - h[d] * h[d]);
}

class RNN : public Recurrence {
public:
    explicit RNN(OpSpec spec) : Recurrence(std::move(spec), 1, {{{0}}}) {}

protected:
    void advance(size_t, int64_t t, int64_t n, float* drive) override {
        add_drive(t, n, 0, width_, drive);
        forward_row(drive, after(0, t, n), hidden_);
    }

    void retreat(size_t, int64_t t, int64_t n, float* wanted) override {
        backward_row(after(0, t, n), gradient(0, n), wanted, hidden_);
        std::fill_n(gradient(0, n), hidden_, 0.f);  // all of it goes through the product
    }
};

static const RegisterOp<RNN> registered("RNN");

}  // namespace
}  // namespace engine
