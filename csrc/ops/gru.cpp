// Gated recurrent units over a sequence: with h' = cont h of the step before,
//   z = sigmoid(drive_z + R_z h'), r = sigmoid(drive_r + R_r h'), g = tanh(drive_g + R_h (r h')), h = g + z (h' - g),
// or, with `linear_before_reset`, g = tanh(drive_g + r (R_h h' + b)).
// inputs: drive (T N, 3 H), that of z, of r and of g one after the other; cont (T, N); with the attribute `static` a
// further drive of all steps (N, 3 H); then, if the state is exposed, the first one (1, N, H). params: R_z, R_r, R_h
// (H, H), b (H) with linear_before_reset. outputs: h (T, N, H), and, if exposed, the last state (1, N, H). A state that
// is not exposed goes on from one batch to the next; gradients do not.
#include <algorithm>
#include <cmath>

#include "kernels/vectorised.h"
#include "ops/common/onednn_util.h"

namespace engine {
namespace {

ENGINE_VECTORISED float product(const float* a, const float* b, int64_t length) {
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < length; i++) sum += a[i] * b[i];
    return sum;
}

ENGINE_VECTORISED void add_scaled(float factor, const float* x, float* y, int64_t length) {
#pragma omp simd
    for (int64_t i = 0; i < length; i++) y[i] += factor * x[i];
}

float sigmoid(float x) { return 1 / (1 + std::exp(-x)); }

class GRU : public Op {
public:
    explicit GRU(OpSpec spec)
        : Op(std::move(spec)),
          has_static_(spec_.attributes.flag("static")),
          linear_before_reset_(spec_.attributes.flag("linear_before_reset")),
          steps_(input(1)->shape.at(0)),
          batch_(input(1)->shape.at(1)),
          hidden_(spec_.output_shapes.at(0).back()),
          first_state_(2 + size_t(has_static_)),
          first_(batch_ * hidden_),
          last_(batch_ * hidden_) {
        for (size_t i = 0; i < spec_.params.size(); i++) plain_param(i);
        for (size_t i = 0; i < outputs_.size(); i++)
            touch(Pass::forward, output(i, plain_layout(spec_.output_shapes[i])));
        // z, r, g, and what r multiplies: h' or R_h h' + b
        kept_ = workspace("gates", plain_layout({steps_ * batch_, 4 * hidden_}));
        touch(Pass::forward, kept_);
        for (const auto& each : spec_.inputs) touch(Pass::forward, each);
        if (!needs_backward()) return;
        gradients_ = scratch(plain_layout({batch_, hidden_}));
        drive_gradients_ = scratch(plain_layout({steps_ * batch_, 4 * hidden_}));
        touch(Pass::backward, {outputs_[0], kept_, input(1)});
        for (const auto& each : spec_.inputs)
            if (each->diff) touch(Pass::backward, each->diff);
        for (const auto& each : outputs_)
            if (each->diff) touch(Pass::backward, each->diff);
    }

    void forward(const dnnl::stream&) override {
        const float* const from = exposed() ? input(first_state_)->data() : last_.data();
        std::copy_n(from, batch_ * hidden_, first_.data());
        for (int64_t t = 0; t < steps_; t++) {
#pragma omp parallel for
            for (int64_t n = 0; n < batch_; n++) advance(t, n);
        }
        std::copy_n(after(steps_ - 1, 0), batch_ * hidden_, exposed() ? outputs_[1]->data() : last_.data());
    }

    void backward(const dnnl::stream&) override {
        if (exposed() && output_gradient(1))
            std::copy_n(outputs_[1]->diff->data(), batch_ * hidden_, gradient(0));
        else
            std::fill_n(gradient(0), batch_ * hidden_, 0.f);
        for (int64_t t = steps_ - 1; t >= 0; t--) {
#pragma omp parallel for
            for (int64_t n = 0; n < batch_; n++) retreat(t, n);
        }
        differentiate_weights();
        write_gradients();
    }

private:
    bool exposed() const { return spec_.inputs.size() > first_state_; }
    float cont(int64_t t, int64_t n) const { return input(1)->data()[t * batch_ + n]; }
    const float* before(int64_t t, int64_t n) const {
        return t > 0 ? outputs_[0]->data() + ((t - 1) * batch_ + n) * hidden_ : first_.data() + n * hidden_;
    }
    float* after(int64_t t, int64_t n) const { return outputs_[0]->data() + (t * batch_ + n) * hidden_; }
    float* kept(int64_t t, int64_t n) const { return kept_->data() + (t * batch_ + n) * 4 * hidden_; }
    float* gradient(int64_t n) const { return static_cast<float*>(gradients_.get_data_handle()) + n * hidden_; }
    // Of what z, r, g and, with linear_before_reset, R_h h' + b are made from.
    float* wanted(int64_t t, int64_t n) const {
        return static_cast<float*>(drive_gradients_.get_data_handle()) + (t * batch_ + n) * 4 * hidden_;
    }
    const float* row(size_t matrix, int64_t d) const { return param(matrix)->data() + d * hidden_; }

    float drive(int64_t t, int64_t n, int64_t i) const {
        const float own = input(0)->data()[(t * batch_ + n) * 3 * hidden_ + i];
        return has_static_ ? own + input(2)->data()[n * 3 * hidden_ + i] : own;
    }

    void advance(int64_t t, int64_t n) const {
        const float keep = cont(t, n), *const old = before(t, n);
        float *const h = after(t, n), *const z = kept(t, n), *const r = z + hidden_, *const g = r + hidden_;
        float* const reset = g + hidden_;
        for (int64_t d = 0; d < hidden_; d++) {
            z[d] = sigmoid(drive(t, n, d) + keep * product(row(0, d), old, hidden_));
            r[d] = sigmoid(drive(t, n, hidden_ + d) + keep * product(row(1, d), old, hidden_));
            reset[d] = linear_before_reset_ ? keep * product(row(2, d), old, hidden_) + param(3)->data()[d]
                                            : keep * old[d] * r[d];
        }
        for (int64_t d = 0; d < hidden_; d++) {
            const float recurrent = linear_before_reset_ ? r[d] * reset[d] : product(row(2, d), reset, hidden_);
            g[d] = std::tanh(drive(t, n, 2 * hidden_ + d) + recurrent);
            h[d] = g[d] + z[d] * (keep * old[d] - g[d]);
        }
    }

    void retreat(int64_t t, int64_t n) const {
        const float keep = cont(t, n), *const old = before(t, n), *const z = kept(t, n), *const r = z + hidden_;
        const float *const g = r + hidden_, *const reset = g + hidden_;
        float *const of_z = wanted(t, n), *const of_r = of_z + hidden_, *const of_g = of_r + hidden_;
        float *const of_reset = of_g + hidden_, *const of_h = gradient(n);
        if (output_gradient(0)) add_scaled(1, outputs_[0]->diff->data() + (t * batch_ + n) * hidden_, of_h, hidden_);
        for (int64_t d = 0; d < hidden_; d++) {
            of_z[d] = of_h[d] * (keep * old[d] - g[d]) * z[d] * (1 - z[d]);
            of_g[d] = of_h[d] * (1 - z[d]) * (1 - g[d] * g[d]);
            of_h[d] *= z[d];  // what comes to h' directly
        }
        std::fill_n(of_reset, hidden_, 0.f);
        if (linear_before_reset_)
            for (int64_t d = 0; d < hidden_; d++) {
                of_reset[d] = of_g[d] * r[d];
                of_r[d] = of_g[d] * reset[d] * r[d] * (1 - r[d]);
                add_scaled(of_reset[d], row(2, d), of_h, hidden_);
            }
        else {
            for (int64_t d = 0; d < hidden_; d++) add_scaled(of_g[d], row(2, d), of_reset, hidden_);
            for (int64_t d = 0; d < hidden_; d++) {
                of_r[d] = of_reset[d] * keep * old[d] * r[d] * (1 - r[d]);
                of_h[d] += of_reset[d] * r[d];
            }
        }
        for (int64_t d = 0; d < hidden_; d++) {
            add_scaled(of_z[d], row(0, d), of_h, hidden_);
            add_scaled(of_r[d], row(1, d), of_h, hidden_);
        }
        for (int64_t d = 0; d < hidden_; d++) of_h[d] *= keep;
    }

    // R_h sees r h', or h'; the others h'.
    void differentiate_weights() const {
        for (size_t matrix = 0; matrix < 3; matrix++) {
            if (!param_gradient(matrix)) continue;
            const TensorPtr& diff = param(matrix)->diff;
            const int64_t of = matrix == 2 && linear_before_reset_ ? 3 : int64_t(matrix);
            const bool after_reset = matrix == 2 && !linear_before_reset_;
#pragma omp parallel for
            for (int64_t d = 0; d < hidden_; d++) {
                float* const into = diff->data() + d * hidden_;
                if (!diff->accumulate) std::fill_n(into, hidden_, 0.f);
                for (int64_t t = 0; t < steps_; t++)
                    for (int64_t n = 0; n < batch_; n++) {
                        const float given = wanted(t, n)[of * hidden_ + d];
                        if (after_reset)
                            add_scaled(given, kept(t, n) + 3 * hidden_, into, hidden_);
                        else
                            add_scaled(given * cont(t, n), before(t, n), into, hidden_);
                    }
            }
        }
        if (!linear_before_reset_ || !param_gradient(3)) return;
        const TensorPtr& diff = param(3)->diff;
        if (!diff->accumulate) std::fill_n(diff->data(), hidden_, 0.f);
        for (int64_t t = 0; t < steps_; t++)
            for (int64_t n = 0; n < batch_; n++) add_scaled(1, wanted(t, n) + 3 * hidden_, diff->data(), hidden_);
    }

    void write_gradients() const {
        const int64_t width = 3 * hidden_;
        for (int64_t i = 0; i < steps_ * batch_ && input_gradient(0); i++)
            std::copy_n(wanted(0, i), width, input(0)->diff->data() + i * width);
        if (has_static_ && input_gradient(2)) {
            float* const sums = input(2)->diff->data();
            std::fill_n(sums, batch_ * width, 0.f);
            for (int64_t t = 0; t < steps_; t++)
                for (int64_t n = 0; n < batch_; n++) add_scaled(1, wanted(t, n), sums + n * width, width);
        }
        if (exposed() && input_gradient(first_state_))
            std::copy_n(gradient(0), batch_ * hidden_, input(first_state_)->diff->data());
    }

    bool has_static_, linear_before_reset_;
    int64_t steps_, batch_, hidden_;
    size_t first_state_;               // where it comes among the inputs
    std::vector<float> first_, last_;  // states before the first step and after the last one
    TensorPtr kept_;
    memory gradients_, drive_gradients_;
};

static const RegisterOp<GRU> registered("GRU");

}  // namespace
}  // namespace engine
