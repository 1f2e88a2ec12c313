// Computes the cross-entropy between sigmoid(x) and targets in [0, 1]. With the attribute signs, targets above 0 stand
// for 1 and those below for 0; those that are 0 are ignored.
// inputs: x (N, ...), targets (as many), both float32, row-major; outputs: loss (); attributes: loss_weight,
// ignore_label (optional), normalizer (the divisor of the sum; 0: the number of targets that are not ignored, at least
// 1), positive_weights and negative_weights (optional, both or none: the factors of t and 1 - t for each label, which
// is x's second axis), signs (optional).
#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/chunks.h"
#include "kernels/squash.h"
#include "ops/common/onednn_util.h"

namespace engine {
namespace {

// The factors of t and 1 - t, of a strip.
struct Weights {
    alignas(64) float positive[Strips::widest], negative[Strips::widest];
};

// The sum of the losses of a strip's targets that are not ignored, and the number of these targets.
struct Losses {
    double sum;
    int64_t valid;

    void operator+=(const Losses& other) {
        sum += other.sum;
        valid += other.valid;
    }
};

// Returns log(1 + e), corrected for the digits that rounding takes from 1 + e (Kahan).
inline __attribute__((always_inline)) float log_beyond(float e) {
    const float sum = 1 + e;
    return sum == 1 ? e : logf(sum) * (e / (sum - 1));
}

// Returns the target of a label. NaN stays NaN, so that the loss shows it.
inline __attribute__((always_inline)) float target_of(float label, bool signs) {
    return signs && label == label ? float(label > 0) : label;
}

// Sums -t log(s) - (1 - t) log(1 - s), with weights before t and 1 - t, in a form in which exp() never overflows.
ENGINE_VECTORISED Losses measure(const float* x, const float* targets, const Weights& weights, float ignore, bool signs,
                                 int64_t length) {
    double sum = 0;
    int64_t valid = 0;
#pragma omp simd reduction(+ : sum, valid)
    for (int64_t i = 0; i < length; i++) {
        const float t = target_of(targets[i], signs), rest = log_beyond(expf(-std::fabs(x[i])));
        const float positive = weights.positive[i] * t * ((x[i] < 0 ? -x[i] : 0) + rest);
        const float negative = weights.negative[i] * (1 - t) * ((x[i] > 0 ? x[i] : 0) + rest);
        const bool counts = signs ? targets[i] != 0 : std::trunc(t) != ignore;
        sum += counts ? double(positive + negative) : 0;
        valid += counts;
    }
    return {sum, valid};
}

ENGINE_VECTORISED void differentiate(const float* x, const float* targets, const Weights& weights, float ignore,
                                     bool signs, float scale, float* diff, int64_t length) {
#pragma omp simd
    for (int64_t i = 0; i < length; i++) {
        const float t = target_of(targets[i], signs), s = sigmoid(x[i]);
        const float slope = weights.negative[i] * (1 - t) * s - weights.positive[i] * t * (1 - s);
        const bool counts = signs ? targets[i] != 0 : std::trunc(t) != ignore;
        diff[i] = counts ? scale * slope : 0;
    }
}

class SigmoidCrossEntropyLoss : public Op {
public:
    explicit SigmoidCrossEntropyLoss(OpSpec spec) : Op(std::move(spec)) {
        const auto& attributes = spec_.attributes;
        fixed_normalizer_ = attributes.real("normalizer");
        signs_ = attributes.has("signs");
        if (attributes.has("ignore_label")) ignore_ = float(attributes.integer("ignore_label"));
        rows_ = input(0)->shape.at(0);
        row_ = input(0)->count() / rows_;
        if (attributes.has("positive_weights")) {
            const auto positive = attributes.reals("positive_weights"), negative = attributes.reals("negative_weights");
            positive_.assign(positive.begin(), positive.end());
            negative_.assign(negative.begin(), negative.end());
        }
        inner_ = row_ / int64_t(positive_.size());
        make_loss();
        touch(Pass::forward, {input(0), input(1)});
        if (!input_gradient(0)) return;
        touch(Pass::backward, {input(0), input(1), input(0)->diff});
        may_overwrite(Pass::backward, input(0), input(0)->diff);
    }

    void forward(const dnnl::stream&) override {
        const float *const x = input(0)->data(), *const targets = input(1)->data();
        const Losses all = sum_of_strips(strips(), losses_, [=, this](int64_t, int64_t begin, int64_t length) {
            return measure(x + begin, targets + begin, weights(begin, length), ignore_, signs_, length);
        });
        normalizer_ = fixed_normalizer_ > 0 ? fixed_normalizer_ : double(std::max<int64_t>(all.valid, 1));
        outputs_[0]->data()[0] = float(all.sum / normalizer_);
    }

    void backward(const dnnl::stream&) override {
        const float scale = float(loss_gradient() / normalizer_);
        const float *const x = input(0)->data(), *const targets = input(1)->data();
        float* const diff = input(0)->diff->data();
        strips().each([=, this](int64_t, int64_t, int64_t begin, int64_t length) {
            differentiate(x + begin, targets + begin, weights(begin, length), ignore_, signs_, scale, diff + begin,
                          length);
        });
    }

private:
    Strips strips() const { return {1, 1, rows_ * row_}; }

    Weights weights(int64_t begin, int64_t length) const {
        Weights weights;
        for (int64_t i = 0; i < length;) {
            const size_t label = size_t((begin + i) % row_ / inner_);
            const int64_t end = std::min(length, i + inner_ - (begin + i) % inner_);
            std::fill(weights.positive + i, weights.positive + end, positive_[label]);
            std::fill(weights.negative + i, weights.negative + end, negative_[label]);
            i = end;
        }
        return weights;
    }

    double fixed_normalizer_, normalizer_ = 1;
    bool signs_;
    float ignore_ = std::numeric_limits<float>::quiet_NaN();  // no target is equal to it
    int64_t rows_, row_, inner_;
    std::vector<Losses> losses_;                    // of strips
    std::vector<float> positive_{1}, negative_{1};  // of each label, or one for all
};

static const RegisterOp<SigmoidCrossEntropyLoss> registered("SigmoidCrossEntropyLoss");

}  // namespace
}  // namespace engine
