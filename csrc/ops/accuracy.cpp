// Computes the share of labels that are among the top_k best scores: fewer than top_k other classes score as much or
// more. It has no backward.
// inputs: scores, labels (one for each position outside the axis), both float32, row-major; outputs: accuracy (),
// optionally the accuracy of every class (classes); attributes: axis, top_k, ignore_label (optional).
#include <algorithm>

#include "ops/common/labels.h"
#include "ops/common/onednn_util.h"

namespace engine {
namespace {

class Accuracy : public Op {
public:
    explicit Accuracy(OpSpec spec)
        : Op(std::move(spec)),
          axis_(spec_.attributes.integer("axis")),
          top_k_(spec_.attributes.integer("top_k")),
          classes_(input(0)->shape.at(axis_)),
          outer_(count_of(Dims(input(0)->shape.begin(), input(0)->shape.begin() + axis_))),
          inner_(input(0)->count() / (outer_ * classes_)),
          labels_(spec_, outer_ * inner_, classes_),
          right_(outer_ * inner_) {
        output(0, plain_layout({}));
        touch(Pass::forward, {input(0), input(1), outputs_[0]});
        if (outputs_.size() == 1) return;
        touch(Pass::forward, output(1, plain_layout({classes_})));
        seen_.resize(classes_);
        hits_.resize(classes_);
    }

    void forward(const dnnl::stream&) override {
        const int64_t valid = labels_.read(input(1)->data());
        const int64_t count = outer_ * inner_;
#pragma omp parallel for
        for (int64_t i = 0; i < count; i++) right_[i] = labels_[i] != Labels::ignored && is_right(i);
        const int64_t right = std::count(right_.begin(), right_.end(), 1);
        outputs_[0]->data()[0] = valid ? float(double(right) / double(valid)) : 0;
        if (outputs_.size() > 1) per_class();
    }

private:
    // Tells whether label i is among the best. A score beside a NaN, or a NaN beside a score, counts as no less, so
    // that a net that has diverged is not right.
    bool is_right(int64_t i) const {
        const float* const scores = input(0)->data() + i / inner_ * classes_ * inner_ + i % inner_;
        const float own = scores[labels_[i] * inner_];
        int64_t others = -1;  // the loop counts the label's own class, too
        for (int64_t c = 0; c < classes_ && others < top_k_; c++) others += !(scores[c * inner_] < own);
        return others < top_k_;
    }

    void per_class() {
        std::fill(seen_.begin(), seen_.end(), 0);
        std::fill(hits_.begin(), hits_.end(), 0);
        for (size_t i = 0; i < right_.size(); i++) {
            if (labels_[i] == Labels::ignored) continue;
            seen_[labels_[i]]++;
            hits_[labels_[i]] += right_[i];
        }
        for (int64_t c = 0; c < classes_; c++)
            outputs_[1]->data()[c] = seen_[c] ? float(double(hits_[c]) / double(seen_[c])) : 0;
    }

    int64_t axis_, top_k_, classes_, outer_, inner_;
    Labels labels_;
    std::vector<uint8_t> right_;
    std::vector<int64_t> seen_, hits_;  // of each class: its labels, and those that are right
};

static const RegisterOp<Accuracy> registered("Accuracy");

}  // namespace
}  // namespace engine
