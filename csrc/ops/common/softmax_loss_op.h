// The base of FocalLoss, InfogainLoss and SoftmaxWithLoss: softmax along one axis, and a loss of each label.
#pragma once

#include "ops/common/labels.h"
#include "ops/common/softmax_op.h"

namespace engine {

class SoftmaxLossOp : public SoftmaxOp {
public:
    void forward(const dnnl::stream& stream) override {
        const int64_t valid = distributions_ ? outer_ * inner_ : labels_.read(input(1)->data());
        if (!in_columns_) SoftmaxOp::forward(stream);
        normalizer_ = fixed_normalizer_ > 0 ? fixed_normalizer_ : double(std::max<int64_t>(valid, 1));
        const auto loss = [this](int64_t n, int64_t begin, int64_t width) {
            if (in_columns_) compute_strip(n, begin, width);  // here, so that its loss reads it from the cache
            return strip_loss(n, begin, begin + width);
        };
        const double sum = sum_of_strips(strips(), losses_, loss);
        outputs_[0]->data()[0] = float(sum / normalizer_);
    }

protected:
    // inputs: x and labels (one for each position of x outside the axis), both float32, row-major; outputs: loss (),
    // optionally the probabilities (as x); attributes: axis, loss_weight, ignore_label (optional), normalizer (the
    // divisor of the sum of losses; 0: the number of labels that are not ignored, at least 1), distributions (optional:
    // the labels are as x, a weight for each class).
    explicit SoftmaxLossOp(OpSpec spec)
        : SoftmaxOp(std::move(spec)),
          distributions_(spec_.attributes.has("distributions")),
          labels_(spec_, distributions_ ? 0 : input(1)->count(), input(0)->shape.at(spec_.attributes.integer("axis"))),
          fixed_normalizer_(spec_.attributes.real("normalizer")) {
        const Layout& layout = input(0)->layout;
        make_loss();
        probabilities_ = outputs_.size() > 1 ? output(1, layout) : workspace("probabilities", layout);
        add_softmax(input(0), probabilities_, int(spec_.attributes.integer("axis")));
        touch(Pass::forward, input(1));
        if (!input_gradient(0)) return;
        touch(Pass::backward, {probabilities_, input(0)->diff});
        if (distributions_) touch(Pass::backward, input(1));
        may_overwrite(Pass::backward, probabilities_, input(0)->diff);
    }

    // Returns the sum of the losses of sample n's labels [begin, end), in any thread.
    virtual double strip_loss(int64_t n, int64_t begin, int64_t end) const = 0;

    // Returns the factor of each label's gradient.
    float gradient_scale() const { return float(loss_gradient() / normalizer_); }

    bool distributions_;
    Labels labels_;  // none with distributions_
    TensorPtr probabilities_;

private:
    double fixed_normalizer_, normalizer_ = 1;
    std::vector<double> losses_;
};

}  // namespace engine
