// Cross-entropy between sigmoid(x) and targets in [0, 1].
// inputs: x, targets (both row-major, same count, first axis N); attributes: loss_weight, ignore_label (optional),
// normalizer (what the sum is divided by; 0: the number of targets that are not ignored, at least 1), positive_weights
// and negative_weights (optional, both or none: for each label, which is x's second axis).
#include <algorithm>
#include <cmath>

#include "kernels/whole.h"
#include "ops/common/onednn_util.h"

namespace engine {
namespace {

class SigmoidCrossEntropyLoss : public Op {
public:
    explicit SigmoidCrossEntropyLoss(OpSpec spec) : Op(std::move(spec)) {
        const auto& attributes = spec_.attributes;
        fixed_normalizer_ = attributes.real("normalizer");
        has_ignore_ = attributes.has("ignore_label");
        if (has_ignore_) ignore_ = float(attributes.integer("ignore_label"));
        rows_ = input(0)->shape.at(0);
        row_ = input(0)->count() / rows_;
        if (attributes.has("positive_weights")) {
            positive_ = attributes.reals("positive_weights");
            negative_ = attributes.reals("negative_weights");
            inner_ = row_ / int64_t(positive_.size());
        }
        losses_.resize(rows_);
        valid_.resize(rows_);
        make_loss();
        touch(Pass::forward, {input(0), input(1)});
        if (!input_gradient(0)) return;
        touch(Pass::backward, {input(0), input(1), input(0)->diff});
        may_overwrite(Pass::backward, input(0), input(0)->diff);
    }

    void forward(const dnnl::stream&) override {
#pragma omp parallel for
        for (int64_t i = 0; i < rows_; i++) measure(i);
        double sum = 0;  // in the order of rows, whatever the number of threads
        int64_t valid = 0;
        for (int64_t i = 0; i < rows_; i++) {
            sum += losses_[i];
            valid += valid_[i];
        }
        normalizer_ = fixed_normalizer_ > 0 ? fixed_normalizer_ : double(std::max<int64_t>(valid, 1));
        outputs_[0]->data()[0] = float(sum / normalizer_);
    }

    void backward(const dnnl::stream&) override {
        const float scale = float(loss_gradient() / normalizer_);
        const float* const x = input(0)->data();
        const float* const targets = input(1)->data();
        float* const diff = input(0)->diff->data();
        const int64_t count = rows_ * row_;
#pragma omp parallel for
        for (int64_t i = 0; i < count; i++) {
            const float s = 1 / (1 + std::exp(-x[i])), t = targets[i];
            if (ignored(t)) {
                diff[i] = 0;
            } else if (positive_.empty()) {
                diff[i] = scale * (s - t);
            } else {
                const int64_t label = i % row_ / inner_;
                diff[i] = scale * float(negative_[label] * (1 - t) * s - positive_[label] * t * (1 - s));
            }
        }
    }

private:
    bool ignored(float target) const { return has_ignore_ && whole(target) == whole(ignore_); }

    // -t log(s) - (1 - t) log(1 - s), arranged so that exp() never overflows; weights go before t and 1 - t.
    void measure(int64_t i) {
        const float* const x = input(0)->data() + i * row_;
        const float* const targets = input(1)->data() + i * row_;
        double sum = 0;
        int64_t valid = 0;
        for (int64_t j = 0; j < row_; j++) {
            if (ignored(targets[j])) continue;
            const float t = targets[j], rest = std::log1p(std::exp(-std::abs(x[j])));
            if (positive_.empty()) {
                sum += std::max(x[j], 0.f) - x[j] * t + rest;
            } else {
                sum += positive_[j / inner_] * t * (std::max(-x[j], 0.f) + rest);
                sum += negative_[j / inner_] * (1 - t) * (std::max(x[j], 0.f) + rest);
            }
            valid++;
        }
        losses_[i] = sum;
        valid_[i] = valid;
    }

    double fixed_normalizer_, normalizer_ = 1;
    bool has_ignore_;
    float ignore_ = 0;
    int64_t rows_, row_, inner_ = 1;
    std::vector<double> losses_;
    std::vector<int64_t> valid_;
    std::vector<double> positive_, negative_;  // empty: all are 1
};

static const RegisterOp<SigmoidCrossEntropyLoss> registered("SigmoidCrossEntropyLoss");

}  // namespace
}  // namespace engine
