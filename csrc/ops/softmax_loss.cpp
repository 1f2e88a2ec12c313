// Softmax along one axis, followed by the mean negative log-likelihood of the labels.
// inputs: x (row-major), labels (one per position of x outside the axis); outputs: loss (), and, where asked for, the
// probabilities (as x), and the loss of each label; attributes: axis, loss_weight, ignore_label (optional),
// label_smoothing, normalizer (what the sum of the losses is divided by; 0: the number of labels that are not ignored,
// at least 1).
#include <algorithm>
#include <cfloat>
#include <cmath>

#include "labels.h"
#include "softmax_op.h"

namespace engine {

class SoftmaxWithLoss : public SoftmaxOp {
public:
    explicit SoftmaxWithLoss(OpSpec spec)
        : SoftmaxOp(std::move(spec)),
          axis_(int(spec_.attributes.integer("axis"))),
          loss_weight_(spec_.attributes.real("loss_weight")),
          smoothing_(float(spec_.attributes.real("label_smoothing", 0))),
          fixed_normalizer_(spec_.attributes.real("normalizer")),
          classes_(input(0)->shape.at(axis_)),
          outer_(count_of(Dims(input(0)->shape.begin(), input(0)->shape.begin() + axis_))),
          inner_(input(0)->count() / (outer_ * classes_)),
          labels_(spec_, outer_ * inner_, classes_),
          losses_(outer_) {
        const Layout& layout = input(0)->layout;
        output(0, plain_layout({}));
        probabilities_ = outputs_.size() > 1 ? output(1, layout) : workspace("probabilities", layout);
        add_softmax(input(0), probabilities_, axis_);
        touch(Pass::forward, {input(1), outputs_[0]});
        if (outputs_.size() > 2) touch(Pass::forward, output(2, plain_layout(spec_.output_shapes[2])));
        if (!input_gradient(0)) return;
        touch(Pass::backward, {probabilities_, input(0)->diff});
        may_overwrite(Pass::backward, probabilities_, input(0)->diff);
    }

    void forward(const dnnl::stream& stream) override {
        const int64_t valid = labels_.read(input(1)->data());
        SoftmaxOp::forward(stream);
        normalizer_ = fixed_normalizer_ > 0 ? fixed_normalizer_ : double(std::max<int64_t>(valid, 1));
#pragma omp parallel for
        for (int64_t i = 0; i < outer_; i++) losses_[i] = row_loss(i);
        double sum = 0;  // in the order of rows, whatever the number of threads
        for (double loss : losses_) sum += loss;
        outputs_[0]->data()[0] = float(sum / normalizer_);
    }

    // The gradient of a row's loss is p - t, where t is the (smoothed) distribution that the label stands for.
    void backward(const dnnl::stream&) override {
        const float scale = float(loss_weight_ / normalizer_), uniform = smoothing_ / float(classes_);
        const int64_t row = classes_ * inner_;
#pragma omp parallel for
        for (int64_t i = 0; i < outer_; i++) {
            const float* const p = probabilities_->data() + i * row;
            float* const diff = input(0)->diff->data() + i * row;
#pragma omp simd
            for (int64_t k = 0; k < row; k++) diff[k] = scale * (p[k] - uniform);
            for (int64_t j = 0; j < inner_; j++) {
                const int32_t label = labels_[i * inner_ + j];
                if (label == Labels::ignored)
                    for (int64_t c = 0; c < classes_; c++) diff[c * inner_ + j] = 0;
                else
                    diff[label * inner_ + j] -= scale * (1 - smoothing_);
            }
        }
    }

private:
    // Probabilities that have underflowed count as the smallest normal number, so that a loss is never infinite.
    static double minus_log(float p) { return -std::log(std::max(p, FLT_MIN)); }

    double row_loss(int64_t i) const {
        double sum = 0;
        for (int64_t j = i * inner_; j < (i + 1) * inner_; j++) {
            const double loss = label_loss(j);
            sum += loss;
            if (outputs_.size() > 2) outputs_[2]->data()[j] = float(loss);
        }
        return sum;
    }

    double label_loss(int64_t j) const {
        const int32_t label = labels_[j];
        if (label == Labels::ignored) return 0;
        const float* const p = probabilities_->data() + j / inner_ * classes_ * inner_ + j % inner_;
        const double own = (1 - smoothing_) * minus_log(p[label * inner_]);
        if (smoothing_ == 0) return own;
        double all = 0;
        for (int64_t c = 0; c < classes_; c++) all += minus_log(p[c * inner_]);
        return own + smoothing_ / double(classes_) * all;
    }

    int axis_;
    double loss_weight_;
    float smoothing_;
    double fixed_normalizer_, normalizer_ = 1;
    int64_t classes_, outer_, inner_;
    Labels labels_;
    std::vector<double> losses_;
    TensorPtr probabilities_;
};

static const RegisterOp<SoftmaxWithLoss> registered("SoftmaxWithLoss");

}  // namespace engine
