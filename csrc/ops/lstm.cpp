// Computes long short-term memory (Hochreiter and Schmidhuber 1997, with forget gates) over a sequence: with h' = cont
// h and c' = cont c of the step before, c = f c' + i g, h = o tanh(c). The gates i, f and o are sigmoids, and g a tanh,
// of four slices of drive + R h'.
// inputs, outputs, attributes: see recurrence.h; the drive (T N, 4 H) has the slices of i, f, o and g one after the
// other.
// params: R (4 H, H).
#include "kernels/squash.h"
#include "ops/common/recurrence.h"

namespace engine {
namespace {

// Rows of one sequence at one step; keep: its cont. drive: of the gates before their activations; gates: after them.
ENGINE_VECTORISED void forward_row(const float* drive, float keep, const float* old, float* gates, float* c, float* h,
                                   int64_t units) {
#pragma omp simd
    for (int64_t d = 0; d < units; d++) {
        const float i = sigmoid(drive[d]), f = sigmoid(drive[units + d]), o = sigmoid(drive[2 * units + d]);
        const float g = squash(drive[3 * units + d]);
        c[d] = keep * f * old[d] + i * g;
        h[d] = o * squash(c[d]);
        gates[d] = i;
        gates[units + d] = f;
        gates[2 * units + d] = o;
        gates[3 * units + d] = g;
    }
}

// of_h, of_c: hold the gradients of h and c; receive those of h' and c of the step before, but for what the product
// sends. wanted: receives that of the gates before their activations; it may be where the gates are.
ENGINE_VECTORISED void backward_row(const float* gates, float keep, const float* old, const float* c, float* of_h,
                                    float* of_c, float* wanted, int64_t units) {
#pragma omp simd
    for (int64_t d = 0; d < units; d++) {
        const float i = gates[d], f = gates[units + d], o = gates[2 * units + d], g = gates[3 * units + d];
        const float squashed = squash(c[d]), given = of_c[d] + of_h[d] * o * (1 - squashed * squashed);
        wanted[d] = given * g * i * (1 - i);
        wanted[units + d] = given * keep * old[d] * f * (1 - f);
        wanted[2 * units + d] = of_h[d] * squashed * o * (1 - o);
        wanted[3 * units + d] = given * i * (1 - g * g);
        of_c[d] = given * keep * f;
        of_h[d] = 0;
    }
}

class LSTM : public Recurrence {
public:
    explicit LSTM(OpSpec spec) : Recurrence(std::move(spec), 2, {{{0}}}) {
        gates_ = workspace("gates", plain_layout({steps_ * batch_, width_}));
        touch(Pass::forward, gates_);
        if (!is_narrow()) may_overwrite(Pass::forward, input(0), gates_);
        if (!needs_backward()) return;
        touch(Pass::backward, gates_);
        if (input_gradient(0) && !is_narrow()) may_overwrite(Pass::backward, gates_, input(0)->diff);
    }

protected:
    void advance(size_t, int64_t t, int64_t n, float* drive) override {
        add_drive(t, n, 0, width_, drive);
        forward_row(drive, cont(t, n), before(1, t, n), gates_of(t, n), after(1, t, n), after(0, t, n), hidden_);
    }

    void retreat(size_t, int64_t t, int64_t n, float* wanted) override {
        backward_row(gates_of(t, n), cont(t, n), before(1, t, n), after(1, t, n), gradient(0, n), gradient(1, n),
                     wanted, hidden_);
    }

private:
    float* gates_of(int64_t t, int64_t n) const { return gates_->data() + (t * batch_ + n) * width_; }

    TensorPtr gates_;  // after their activations
};

static const RegisterOp<LSTM> registered("LSTM");

}  // namespace
}  // namespace engine
