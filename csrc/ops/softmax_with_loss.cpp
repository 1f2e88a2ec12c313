// Computes a softmax along one axis and the mean negative log-likelihood of the labels.
// inputs: see softmax_loss_op.h; optionally weights (one for each label, or for each sample: the factors of their
// losses), float32, row-major; outputs: see softmax_loss_op.h; optionally the loss of each label; attributes:
// label_smoothing, class_weights (optional: the factors of the losses of each class's labels); for others see
// softmax_loss_op.h.
#include <algorithm>
#include <cfloat>
#include <cmath>

#include "kernels/double_sums.h"
#include "kernels/vectorised.h"
#include "ops/common/softmax_loss_op.h"

namespace engine {
namespace {

ENGINE_VECTORISED void subtract(const float* p, float uniform, float scale, float* diff, int64_t length) {
#pragma omp simd
    for (int64_t k = 0; k < length; k++) diff[k] = scale * (p[k] - uniform);
}

// Probabilities that have underflowed count as the smallest normal number, so that a loss is never infinite.
double minus_log(float p) { return -std::log(std::max(p, FLT_MIN)); }

ENGINE_VECTORISED void minus_logs(float* p, int64_t length) {
#pragma omp simd
    for (int64_t i = 0; i < length; i++) p[i] = -logf(p[i] < FLT_MIN ? FLT_MIN : p[i]);
}

class SoftmaxWithLoss : public SoftmaxLossOp {
public:
    explicit SoftmaxWithLoss(OpSpec spec)
        : SoftmaxLossOp(std::move(spec)),
          smoothing_(float(spec_.attributes.real("label_smoothing", 0))),
          weights_(spec_.attributes.has("class_weights") ? spec_.attributes.reals("class_weights")
                                                         : std::vector<double>()) {
        if (!weights_.empty() && int64_t(weights_.size()) != classes_)
            throw std::invalid_argument("expected a weight for each of " + std::to_string(classes_) + " classes");
        if (outputs_.size() > 2) touch(Pass::forward, output(2, plain_layout(spec_.output_shapes[2])));
        if (!weighted()) return;
        labels_of_a_weight_ = outer_ * inner_ / input(2)->count();
        touch(Pass::forward, input(2));
        if (input_gradient(0)) touch(Pass::backward, input(2));
    }

    // The gradient of a label's loss is p - t, where t is the (smoothed) distribution that the label stands for.
    void backward(const dnnl::stream&) override {
        const float scale = gradient_scale(), uniform = smoothing_ / float(classes_);
        const float* const p = probabilities_->data();
        float* const wanted = input(0)->diff->data();
        if (!distributions_)
            in_chunks(outer_ * classes_ * inner_, [=](int64_t begin, int64_t length) {
                subtract(p + begin, uniform, scale, wanted + begin, length);
            });
        strips().each([=, this](int64_t, int64_t n, int64_t begin, int64_t width) {
            const int64_t at = n * classes_ * inner_ + begin;
            float* const diff = wanted + at;
            if (distributions_) {
                const float* const target = input(1)->data() + at;
                for (int64_t j = 0; j < width; j++) distribution_gradient(p + at + j, target + j, scale, diff + j);
                return;
            }
            for (int64_t j = 0; j < width; j++) {
                const int32_t label = labels_[n * inner_ + begin + j];
                if (label != Labels::ignored) diff[label * inner_ + j] -= scale * (1 - smoothing_);
                if (label != Labels::ignored && weights_.empty() && !weighted()) continue;
                const float weight = label == Labels::ignored ? 0 : float(weight_of(label, n * inner_ + begin + j));
                for (int64_t c = 0; c < classes_; c++)
                    diff[c * inner_ + j] = weight == 0 ? 0 : weight * diff[c * inner_ + j];
            }
        });
    }

private:
    // Writes the gradient of a distribution. If its weights sum to t, that is t times the gradient of a label. diff may
    // lie where the probabilities do.
    void distribution_gradient(const float* p, const float* target, float scale, float* diff) const {
        const int64_t end = classes_ * inner_;
        float total = 0;
        for (int64_t k = 0; k < end; k += inner_) total += target[k];
        const float uniform = smoothing_ / float(classes_) * total;
        for (int64_t k = 0; k < end; k += inner_)
            diff[k] = scale * (total * p[k] - uniform - (1 - smoothing_) * target[k]);
    }

    double strip_loss(int64_t n, int64_t begin, int64_t end) const override {
        alignas(64) float buffer[Strips::widest];
        float* const losses = outputs_.size() > 2 ? outputs_[2]->data() + n * inner_ + begin : buffer;
        const float* const p = probabilities_->data() + n * classes_ * inner_ + begin;
        if (distributions_) {
            const float* const target = input(1)->data() + n * classes_ * inner_ + begin;
            for (int64_t j = 0; j < end - begin; j++) losses[j] = float(distribution_loss(p + j, target + j));
        } else {
            label_losses(p, n * inner_ + begin, losses, end - begin);
        }
        return sum_of(losses, end - begin);
    }

    double distribution_loss(const float* p, const float* target) const {
        double own = 0, all = 0, total = 0;
        for (int64_t k = 0; k < classes_ * inner_; k += inner_) {
            own += target[k] == 0 ? 0 : double(target[k]) * minus_log(p[k]);
            all += smoothing_ == 0 ? 0 : minus_log(p[k]);
            total += target[k];
        }
        return (1 - smoothing_) * own + smoothing_ / double(classes_) * total * all;
    }

    // Sets the losses of `width` labels from `position` on. p: their probabilities of the first class.
    void label_losses(const float* p, int64_t position, float* losses, int64_t width) const {
        for (int64_t j = 0; j < width; j++) {
            const int32_t label = labels_[position + j];
            losses[j] = label == Labels::ignored ? 1 : p[label * inner_ + j];
        }
        minus_logs(losses, width);
        if (smoothing_ == 0 && weights_.empty() && !weighted()) return;
        for (int64_t j = 0; j < width; j++) {
            const int32_t label = labels_[position + j];
            if (label == Labels::ignored) continue;
            double all = 0;
            if (smoothing_ != 0)
                for (int64_t c = 0; c < classes_; c++) all += minus_log(p[c * inner_ + j]);
            const double weight = weight_of(label, position + j);
            const double loss = (1 - smoothing_) * losses[j] + smoothing_ / double(classes_) * all;
            losses[j] = weight == 0 ? 0 : float(weight * loss);  // weight 0 makes 0 even of NaN, as in the gradient
        }
    }

    bool weighted() const { return spec_.inputs.size() > 2; }

    // Returns the factor of the loss of the label at a position.
    double weight_of(int32_t label, int64_t position) const {
        const double own = weighted() ? input(2)->data()[position / labels_of_a_weight_] : 1;
        return weights_.empty() ? own : own * weights_[size_t(label)];
    }

    float smoothing_;
    std::vector<double> weights_;  // of the classes; empty without class_weights
    int64_t labels_of_a_weight_ = 1;
};

static const RegisterOp<SoftmaxWithLoss> registered("SoftmaxWithLoss");

}  // namespace
}  // namespace engine
