// Cross-entropy between sigmoid(x) and targets in [0, 1].
// inputs: x, targets (both row-major, same count, first axis N); attributes: loss_weight, ignore_label (optional),
// normalizer (what the sum is divided by; 0: the number of targets that are not ignored, at least 1).
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
        loss_weight_ = attributes.real("loss_weight");
        fixed_normalizer_ = attributes.real("normalizer");
        has_ignore_ = attributes.has("ignore_label");
        if (has_ignore_) ignore_ = float(attributes.integer("ignore_label"));
        rows_ = input(0)->shape.at(0);
        row_ = input(0)->count() / rows_;
        losses_.resize(rows_);
        valid_.resize(rows_);
        output(0, plain_layout({}));
        touch(Pass::forward, {input(0), input(1), outputs_[0]});
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
        const float scale = float(loss_weight_ / normalizer_);
        const float* const x = input(0)->data();
        const float* const targets = input(1)->data();
        float* const diff = input(0)->diff->data();
        const int64_t count = rows_ * row_;
#pragma omp parallel for
        for (int64_t i = 0; i < count; i++)
            diff[i] = ignored(targets[i]) ? 0 : scale * (1 / (1 + std::exp(-x[i])) - targets[i]);
    }

private:
    bool ignored(float target) const { return has_ignore_ && whole(target) == whole(ignore_); }

    // -t log(s) - (1 - t) log(1 - s), arranged so that exp() never overflows.
    void measure(int64_t i) {
        const float* const x = input(0)->data() + i * row_;
        const float* const targets = input(1)->data() + i * row_;
        double sum = 0;
        int64_t valid = 0;
        for (int64_t j = 0; j < row_; j++) {
            if (ignored(targets[j])) continue;
            sum += std::max(x[j], 0.f) - x[j] * targets[j] + std::log1p(std::exp(-std::abs(x[j])));
            valid++;
        }
        losses_[i] = sum;
        valid_[i] = valid;
    }

    double loss_weight_, fixed_normalizer_, normalizer_ = 1;
    bool has_ignore_;
    float ignore_ = 0;
    int64_t rows_, row_;
    std::vector<double> losses_;
    std::vector<int64_t> valid_;
};

static const RegisterOp<SigmoidCrossEntropyLoss> registered("SigmoidCrossEntropyLoss");

}  // namespace
}  // namespace engine
