// Long short-term memory (Hochreiter and Schmidhuber 1997, with forget gates) over a sequence; see recurrence.h. The
// drive holds, one after the other, the input, forget and output gates and the candidates: c = f c + i g, h = o
// tanh(c).
#include <cmath>

#include "ops/common/recurrence.h"

namespace engine {
namespace {

class LSTM : public Recurrence {
public:
    explicit LSTM(OpSpec spec) : Recurrence(std::move(spec), 2) {
        gates_ = workspace("gates", input(0)->layout);
        touch(Pass::forward, gates_);
        may_overwrite(Pass::forward, input(0), gates_);
        if (!needs_backward()) return;
        touch(Pass::backward, gates_);
        if (input_gradient(0)) may_overwrite(Pass::backward, gates_, input(0)->diff);
    }

protected:
    void advance(int64_t t, int64_t n, const float* drive) override {
        const float* const old = before(1, t, n);
        const float keep = cont(t, n);
        float *const h = after(0, t, n), *const c = after(1, t, n), *const gates = gates_of(t, n);
        for (int64_t d = 0; d < hidden_; d++) {
            const float i = sigmoid(drive[d]), f = sigmoid(drive[hidden_ + d]);
            const float o = sigmoid(drive[2 * hidden_ + d]), g = std::tanh(drive[3 * hidden_ + d]);
            c[d] = keep * f * old[d] + i * g;
            h[d] = o * std::tanh(c[d]);
            gates[d] = i;
            gates[hidden_ + d] = f;
            gates[2 * hidden_ + d] = o;
            gates[3 * hidden_ + d] = g;
        }
    }

    void retreat(int64_t t, int64_t n, float* wanted) override {
        const float *const old = before(1, t, n), *const c = after(1, t, n), *const gates = gates_of(t, n);
        const float* const of_h = gradient(0, n);
        const float keep = cont(t, n);
        float* const of_c = gradient(1, n);
        for (int64_t d = 0; d < hidden_; d++) {
            const float i = gates[d], f = gates[hidden_ + d], o = gates[2 * hidden_ + d], g = gates[3 * hidden_ + d];
            const float squashed = std::tanh(c[d]), given = of_c[d] + of_h[d] * o * (1 - squashed * squashed);
            wanted[d] = given * g * i * (1 - i);
            wanted[hidden_ + d] = given * keep * old[d] * f * (1 - f);
            wanted[2 * hidden_ + d] = of_h[d] * squashed * o * (1 - o);
            wanted[3 * hidden_ + d] = given * i * (1 - g * g);
            of_c[d] = given * keep * f;
        }
    }

private:
    static float sigmoid(float x) { return 1 / (1 + std::exp(-x)); }
    float* gates_of(int64_t t, int64_t n) const { return gates_->data() + (t * batch_ + n) * width_; }

    TensorPtr gates_;  // behind their activations
};

static const RegisterOp<LSTM> registered("LSTM");

}  // namespace
}  // namespace engine
