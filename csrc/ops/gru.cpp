// Computes gated recurrent units over a sequence. With h' = cont h of the step before,
//   z = sigmoid(drive_z + R_z h'), r = sigmoid(drive_r + R_r h'), g = tanh(drive_g + R_h (r h')), h = g + z (h' - g),
// or, with `linear_before_reset`, g = tanh(drive_g + r (R_h h' + b)).
// inputs: see recurrence.h; the drive (T N, 3 H) has that of z, of r and of g one after the other; outputs, further
// attributes: see recurrence.h; attributes: linear_before_reset.
// params: R_z, R_r, R_h (H, H), with linear_before_reset b (H).
#include "kernels/add_row.h"
#include "kernels/squash.h"
#include "ops/common/recurrence.h"

namespace engine {
namespace {

// Rows of one sequence at one step, H numbers each; keep: its cont. `reset` is what r multiplies: h', or R_h h' + b.

ENGINE_VECTORISED void gate_rows(const float* drive, float* z, float* r, int64_t units) {
#pragma omp simd
    for (int64_t d = 0; d < units; d++) {
        z[d] = sigmoid(drive[d]);
        r[d] = sigmoid(drive[units + d]);
    }
}

ENGINE_VECTORISED void reset_row(float keep, const float* old, const float* r, float* reset, float* product,
                                 int64_t units) {
#pragma omp simd
    for (int64_t d = 0; d < units; d++) {
        reset[d] = keep * old[d];
        product[d] = r[d] * reset[d];
    }
}

// product: holds R_h h'; receives r (R_h h' + b).
ENGINE_VECTORISED void linear_reset_row(const float* bias, const float* r, float* reset, float* product,
                                        int64_t units) {
#pragma omp simd
    for (int64_t d = 0; d < units; d++) {
        reset[d] = product[d] + bias[d];
        product[d] = r[d] * reset[d];
    }
}

ENGINE_VECTORISED void state_row(const float* drive, float keep, const float* old, const float* z, float* g, float* h,
                                 int64_t units) {
#pragma omp simd
    for (int64_t d = 0; d < units; d++) {
        g[d] = squash(drive[d]);
        h[d] = g[d] + z[d] * (keep * old[d] - g[d]);
    }
}

// of_h: holds the gradient of h; receives what h' gets of it directly, not by a gate.
ENGINE_VECTORISED void state_gradient_row(float keep, const float* old, const float* z, const float* g, float* of_h,
                                          float* of_z, float* of_g, int64_t units) {
#pragma omp simd
    for (int64_t d = 0; d < units; d++) {
        of_z[d] = of_h[d] * (keep * old[d] - g[d]) * z[d] * (1 - z[d]);
        of_g[d] = of_h[d] * (1 - z[d]) * (1 - g[d] * g[d]);
        of_h[d] *= z[d];
    }
}

// given: holds the gradient of r times reset; receives that of reset.
ENGINE_VECTORISED void reset_gradient_row(const float* r, const float* reset, float* given, float* of_r,
                                          int64_t units) {
#pragma omp simd
    for (int64_t d = 0; d < units; d++) {
        of_r[d] = given[d] * reset[d] * r[d] * (1 - r[d]);
        given[d] *= r[d];
    }
}

class GRU : public Recurrence {
public:
    explicit GRU(OpSpec spec) : GRU(spec, spec.attributes.flag("linear_before_reset")) {}

protected:
    void advance(size_t k, int64_t t, int64_t n, float* result) override {
        const float keep = cont(t, n), *const old = before(0, t, n);
        float *const z = kept(t, n), *const r = z + hidden_, *const g = r + hidden_, *const reset = g + hidden_;
        if (k == 0) {
            add_drive(t, n, 0, 2 * hidden_, result);
            gate_rows(result, z, r, hidden_);
            if (linear_before_reset_) return;
            reset_row(keep, old, r, reset, result, hidden_);
            set_source(1, t, n, result);
            return;
        }
        if (linear_before_reset_) linear_reset_row(param(3)->data(), r, reset, result, hidden_);
        add_drive(t, n, 2 * hidden_, hidden_, result);
        state_row(result, keep, old, z, g, after(0, t, n), hidden_);
    }

    void retreat(size_t k, int64_t t, int64_t n, float* wanted) override {
        const float *const z = kept(t, n), *const r = z + hidden_, *const g = r + hidden_, *const reset = g + hidden_;
        float *const of_z = result_gradient(0, t, n), *const of_r = of_z + hidden_, *const of_h = gradient(0, n);
        if (k == 1) {
            state_gradient_row(cont(t, n), before(0, t, n), z, g, of_h, of_z, wanted, hidden_);
            set_drive_gradient(t, n, 2 * hidden_, hidden_, wanted);
            if (linear_before_reset_) reset_gradient_row(r, reset, wanted, of_r, hidden_);
            return;
        }
        if (!linear_before_reset_) {
            float* const given = source_gradient(1, n);
            reset_gradient_row(r, reset, given, of_r, hidden_);
            add_row(given, of_h, hidden_);
        }
        set_drive_gradient(t, n, 0, 2 * hidden_, of_z);
    }

private:
    GRU(const OpSpec& spec, bool linear_before_reset)
        : Recurrence(spec, 1, {{{0, 1}}, {{2}, linear_before_reset}}), linear_before_reset_(linear_before_reset) {
        kept_ = workspace("gates", plain_layout({steps_ * batch_, 4 * hidden_}));
        touch(Pass::forward, kept_);
        if (needs_backward()) touch(Pass::backward, kept_);
        if (linear_before_reset) sum_result_gradients(1, 3);
    }

    float* kept(int64_t t, int64_t n) const { return kept_->data() + (t * batch_ + n) * 4 * hidden_; }

    bool linear_before_reset_;
    TensorPtr kept_;  // z, r, g and reset
};

static const RegisterOp<GRU> registered("GRU");

}  // namespace
}  // namespace engine
