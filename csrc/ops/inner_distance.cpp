// Computes the squared distance, the L1 distance or the inner product of every sample and every center.
// inputs: x (M, K); the centers (N, K), unless they are the parameter; with `own_only` labels (M): a center then has a
// gradient from the samples of its class only; all float32, row-major; outputs: (M, N); attributes: kind (a number of
// Kind), own_only.
// params: centers (N, K), if they are no input.
#include <algorithm>
#include <cmath>

#include "kernels/vectorised.h"
#include "ops/common/labels.h"
#include "ops/common/onednn_util.h"

namespace engine {
namespace {

enum Kind { squares, magnitudes, product };

ENGINE_VECTORISED float distance(const float* a, const float* b, Kind kind, int64_t length) {
    float sum = 0;
    if (kind == product)
#pragma omp simd reduction(+ : sum)
        for (int64_t k = 0; k < length; k++) sum += a[k] * b[k];
    else if (kind == magnitudes)
#pragma omp simd reduction(+ : sum)
        for (int64_t k = 0; k < length; k++) sum += std::abs(a[k] - b[k]);
    else
#pragma omp simd reduction(+ : sum)
        for (int64_t k = 0; k < length; k++) sum += (a[k] - b[k]) * (a[k] - b[k]);
    return sum;
}

// Adds `given` times the derivative of distance(a, b) with respect to a.
ENGINE_VECTORISED void add_slope(const float* a, const float* b, Kind kind, float given, float* into, int64_t length) {
    if (kind == product)
#pragma omp simd
        for (int64_t k = 0; k < length; k++) into[k] += given * b[k];
    else if (kind == magnitudes)
#pragma omp simd
        for (int64_t k = 0; k < length; k++) into[k] += given * (float(a[k] > b[k]) - float(a[k] < b[k]));
    else
#pragma omp simd
        for (int64_t k = 0; k < length; k++) into[k] += 2 * given * (a[k] - b[k]);
}

class InnerDistance : public Op {
public:
    explicit InnerDistance(OpSpec spec)
        : Op(std::move(spec)),
          kind_(Kind(spec_.attributes.integer("kind"))),
          own_only_(spec_.attributes.flag("own_only")),
          samples_(spec_.output_shapes.at(0).at(0)),
          centers_(spec_.output_shapes.at(0).at(1)),
          size_(input(0)->count() / samples_),
          labels_(spec_, samples_, centers_) {
        if (!spec_.params.empty()) plain_param(0);
        output(0, plain_layout(spec_.output_shapes[0]));
        for (const auto& each : spec_.inputs) touch(Pass::forward, each);
        touch(Pass::forward, outputs_[0]);
        if (!needs_backward() || !output_gradient(0)) return;
        touch(Pass::backward, outputs_[0]->diff);
        for (const auto& each : spec_.inputs) {
            touch(Pass::backward, each);
            if (each->diff) touch(Pass::backward, each->diff);
        }
    }

    void forward(const dnnl::stream&) override {
        if (own_only_) labels_.read(spec_.inputs.back()->data());
        const float *const x = input(0)->data(), *const w = centers()->data();
        float* const y = outputs_[0]->data();
#pragma omp parallel for collapse(2) schedule(static)
        for (int64_t i = 0; i < samples_; i++)
            for (int64_t j = 0; j < centers_; j++)
                y[i * centers_ + j] = distance(x + i * size_, w + j * size_, kind_, size_);
    }

    void backward(const dnnl::stream&) override {
        if (touched(Pass::backward).empty()) return;
        const float *const x = input(0)->data(), *const w = centers()->data();
        const float* const given = outputs_[0]->diff->data();
        if (input_gradient(0)) {
            float* const wanted = input(0)->diff->data();
#pragma omp parallel for schedule(static)
            for (int64_t i = 0; i < samples_; i++) {
                std::fill_n(wanted + i * size_, size_, 0.f);
                for (int64_t j = 0; j < centers_; j++)
                    add_slope(x + i * size_, w + j * size_, kind_, given[i * centers_ + j], wanted + i * size_, size_);
            }
        }
        const TensorPtr& diff = centers()->diff;
        if (spec_.params.empty() ? !input_gradient(1) : !param_gradient(0)) return;
        const bool adds = !spec_.params.empty() && diff->accumulate;
        float* const wanted = diff->data();
#pragma omp parallel for schedule(static)
        for (int64_t j = 0; j < centers_; j++) {
            if (!adds) std::fill_n(wanted + j * size_, size_, 0.f);
            for (int64_t i = 0; i < samples_; i++)
                if (!own_only_ || labels_[i] == j)
                    add_slope(w + j * size_, x + i * size_, kind_, given[i * centers_ + j], wanted + j * size_, size_);
        }
    }

private:
    const TensorPtr& centers() const { return spec_.params.empty() ? input(1) : param(0); }

    Kind kind_;
    bool own_only_;
    int64_t samples_, centers_, size_;
    Labels labels_;
};

static const RegisterOp<InnerDistance> registered("InnerDistance");

}  // namespace
}  // namespace engine
