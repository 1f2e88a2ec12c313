// Softmax along one axis, then the negative log-likelihood of all classes, each weighted by the row of a matrix H that
// the label selects: -sum_c H[label, c] log p_c. With H = 1 it is SoftmaxWithLoss.
// inputs: x (row-major), labels (one per position of x outside the axis), and H (classes x classes) unless the
// attribute `infogain` has it; outputs: loss (), and, where asked for, the probabilities (as x); attributes: axis,
// loss_weight, infogain (optional), ignore_label (optional), normalizer (what the sum of the losses is divided by; 0:
// the number of labels that are not ignored, at least 1).
#include <algorithm>
#include <cmath>

#include "labels.h"
#include "softmax_op.h"

namespace engine {

class InfogainLoss : public SoftmaxOp {
public:
    explicit InfogainLoss(OpSpec spec)
        : SoftmaxOp(std::move(spec)),
          axis_(int(spec_.attributes.integer("axis"))),
          loss_weight_(spec_.attributes.real("loss_weight")),
          fixed_normalizer_(spec_.attributes.real("normalizer")),
          classes_(input(0)->shape.at(axis_)),
          outer_(count_of(Dims(input(0)->shape.begin(), input(0)->shape.begin() + axis_))),
          inner_(input(0)->count() / (outer_ * classes_)),
          labels_(spec_, outer_ * inner_, classes_),
          row_sums_(classes_),
          losses_(outer_) {
        if (spec_.inputs.size() < 3) {
            const std::vector<double> values = spec_.attributes.reals("infogain");
            matrix_.assign(values.begin(), values.end());
        }
        output(0, plain_layout({}));
        const Layout& layout = input(0)->layout;
        probabilities_ = outputs_.size() > 1 ? output(1, layout) : workspace("probabilities", layout);
        add_softmax(input(0), probabilities_, axis_);
        for (size_t i = 1; i < spec_.inputs.size(); i++) touch(Pass::forward, input(i));
        touch(Pass::forward, outputs_[0]);
        if (!input_gradient(0)) return;
        touch(Pass::backward, {probabilities_, input(0)->diff});
        if (spec_.inputs.size() == 3) touch(Pass::backward, input(2));
        may_overwrite(Pass::backward, probabilities_, input(0)->diff);
    }

    void forward(const dnnl::stream& stream) override {
        const int64_t valid = labels_.read(input(1)->data());
        SoftmaxOp::forward(stream);
        normalizer_ = fixed_normalizer_ > 0 ? fixed_normalizer_ : double(std::max<int64_t>(valid, 1));
        for (int64_t c = 0; c < classes_; c++) {
            row_sums_[c] = 0;
            for (int64_t k = 0; k < classes_; k++) row_sums_[c] += gain(c)[k];
        }
#pragma omp parallel for
        for (int64_t i = 0; i < outer_; i++) losses_[i] = row_loss(i);
        double sum = 0;  // in the order of rows, whatever the number of threads
        for (double loss : losses_) sum += loss;
        outputs_[0]->data()[0] = float(sum / normalizer_);
    }

    // Of one position: p_c sum_k H[label, k] - H[label, c].
    void backward(const dnnl::stream&) override {
        const float scale = float(loss_weight_ / normalizer_);
#pragma omp parallel for
        for (int64_t i = 0; i < outer_ * inner_; i++) {
            const int64_t start = i / inner_ * classes_ * inner_ + i % inner_;
            const float* const p = probabilities_->data() + start;
            float* const diff = input(0)->diff->data() + start;
            const int32_t label = labels_[i];
            for (int64_t c = 0; c < classes_; c++) {
                const bool counts = label != Labels::ignored;
                diff[c * inner_] = counts ? scale * (p[c * inner_] * row_sums_[label] - gain(label)[c]) : 0;
            }
        }
    }

private:
    static constexpr float smallest = 1e-20f;  // Caffe's: a smaller probability counts as this much

    const float* gain(int64_t label) const {
        return (spec_.inputs.size() == 3 ? input(2)->data() : matrix_.data()) + label * classes_;
    }

    double row_loss(int64_t i) const {
        const float* const p = probabilities_->data() + i * classes_ * inner_;
        double sum = 0;
        for (int64_t j = 0; j < inner_; j++) {
            const int32_t label = labels_[i * inner_ + j];
            if (label == Labels::ignored) continue;
            for (int64_t c = 0; c < classes_; c++)
                sum -= gain(label)[c] * std::log(double(std::max(p[c * inner_ + j], smallest)));
        }
        return sum;
    }

    int axis_;
    double loss_weight_, fixed_normalizer_, normalizer_ = 1;
    int64_t classes_, outer_, inner_;
    Labels labels_;
    std::vector<float> matrix_;    // H, if it comes from a file
    std::vector<float> row_sums_;  // of H
    std::vector<double> losses_;
    TensorPtr probabilities_;
};

static const RegisterOp<InfogainLoss> registered("InfogainLoss");

}  // namespace engine
