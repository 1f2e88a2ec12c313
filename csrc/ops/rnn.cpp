// A recurrence of plain units, h = tanh(drive + matrix h), over a sequence; see recurrence.h.
#include <cmath>

#include "ops/common/recurrence.h"

namespace engine {
namespace {

class RNN : public Recurrence {
public:
    explicit RNN(OpSpec spec) : Recurrence(std::move(spec), 1) {}

protected:
    void advance(int64_t t, int64_t n, const float* drive) override {
        float* const h = after(0, t, n);
        for (int64_t d = 0; d < hidden_; d++) h[d] = std::tanh(drive[d]);
    }

    void retreat(int64_t t, int64_t n, float* wanted) override {
        const float* const h = after(0, t, n);
        for (int64_t d = 0; d < hidden_; d++) wanted[d] = gradient(0, n)[d] * (1 - h[d] * h[d]);
    }
};

static const RegisterOp<RNN> registered("RNN");

}  // namespace
}  // namespace engine
