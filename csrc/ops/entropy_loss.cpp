// Computes a softmax along one axis and the entropy of its probabilities: the sum of -p log p, divided by normalizer.
// inputs: x, float32, row-major; outputs: loss (), optionally the probabilities (as x); attributes: axis, loss_weight,
// normalizer.
#include <algorithm>
#include <cfloat>
#include <cmath>

#include "kernels/vectorised.h"
#include "ops/common/softmax_op.h"

namespace engine {
namespace {

// Sets sums[j] to the sum of p log p over the classes, `step` apart, of each of `width` neighbouring positions. logs,
// laid out as p, or null: receives log p. Probabilities that have underflowed count as the smallest normal number.
ENGINE_VECTORISED void add_up_logs(const float* p, int64_t classes, int64_t step, int64_t width, float* sums,
                                   float* logs) {
    std::fill_n(sums, width, 0.f);
    alignas(64) float buffer[Strips::widest];
    for (int64_t c = 0; c < classes; c++) {
        const float* const own = p + c * step;
        float* const log = logs ? logs + c * step : buffer;
#pragma omp simd
        for (int64_t j = 0; j < width; j++) log[j] = logf(own[j] < FLT_MIN ? FLT_MIN : own[j]);
#pragma omp simd
        for (int64_t j = 0; j < width; j++) sums[j] += own[j] * log[j];
    }
}

// The derivative of the entropy by a score is -p (log p + entropy); diff holds the logarithms.
ENGINE_VECTORISED void differentiate(const float* p, const float* sums, float scale, float* diff, int64_t width) {
#pragma omp simd
    for (int64_t j = 0; j < width; j++) diff[j] = -scale * p[j] * (diff[j] - sums[j]);
}

class EntropyLoss : public SoftmaxOp {
public:
    explicit EntropyLoss(OpSpec spec) : SoftmaxOp(std::move(spec)), normalizer_(spec_.attributes.real("normalizer")) {
        const Layout& layout = input(0)->layout;
        make_loss();
        probabilities_ = outputs_.size() > 1 ? output(1, layout) : workspace("probabilities", layout);
        add_softmax(input(0), probabilities_, int(spec_.attributes.integer("axis")));
        if (input_gradient(0)) touch(Pass::backward, {probabilities_, input(0)->diff});
    }

    void forward(const dnnl::stream& stream) override {
        if (!in_columns_) SoftmaxOp::forward(stream);
        const double sum = sum_of_strips(strips(), sums_, [this](int64_t n, int64_t begin, int64_t width) {
            if (in_columns_) compute_strip(n, begin, width);  // here, so that its loss reads it from the cache
            alignas(64) float sums[Strips::widest];
            add_up_logs(probabilities_->data() + n * classes_ * inner_ + begin, classes_, inner_, width, sums, nullptr);
            double all = 0;
            for (int64_t j = 0; j < width; j++) all -= sums[j];
            return all;
        });
        outputs_[0]->data()[0] = float(sum / normalizer_);
    }

    void backward(const dnnl::stream&) override {
        if (!input_gradient(0)) return;
        const float scale = float(loss_gradient() / normalizer_);
        strips().each([&](int64_t, int64_t n, int64_t begin, int64_t width) {
            const int64_t at = n * classes_ * inner_ + begin;
            const float* const p = probabilities_->data() + at;
            float* const diff = input(0)->diff->data() + at;
            alignas(64) float sums[Strips::widest];
            add_up_logs(p, classes_, inner_, width, sums, diff);
            for (int64_t c = 0; c < classes_; c++) differentiate(p + c * inner_, sums, scale, diff + c * inner_, width);
        });
    }

private:
    double normalizer_;
    TensorPtr probabilities_;
    std::vector<double> sums_;
};

static const RegisterOp<EntropyLoss> registered("EntropyLoss");

}  // namespace
}  // namespace engine
