// Measures how well pixels are classified: the share of pixels that are right, the mean over the classes of that share
// among their own pixels (recall), and the mean over the classes of intersection over union. It has no backward.
// inputs: scores (N, classes, ...), labels (one for each position outside the classes), both float32, row-major;
// outputs: the three (1, 1, 1, 3); attributes: ignore_labels, reset (each batch counts by itself, not all since the
// start).
#include <algorithm>
#include <cmath>

#include "ops/common/labels.h"
#include "ops/common/onednn_util.h"

namespace engine {
namespace {

class SegAccuracy : public Op {
public:
    explicit SegAccuracy(OpSpec spec)
        : Op(std::move(spec)),
          reset_(spec_.attributes.flag("reset")),
          classes_(input(0)->shape.at(1)),
          inner_(input(0)->count() / (input(0)->shape[0] * classes_)),
          found_(input(1)->count()),
          pixels_(classes_ * (classes_ + 1)),
          labels_(spec_, input(1)->count(), classes_) {
        output(0, plain_layout(spec_.output_shapes[0]));
        touch(Pass::forward, {input(0), input(1), outputs_[0]});
    }

    void forward(const dnnl::stream&) override {
        labels_.read(input(1)->data());
        const int64_t count = int64_t(found_.size());
#pragma omp parallel for
        for (int64_t i = 0; i < count; i++) found_[i] = best_class(i);
        if (reset_) std::fill(pixels_.begin(), pixels_.end(), 0);
        for (int64_t i = 0; i < count; i++)
            if (labels_[i] != Labels::ignored) pixels_[labels_[i] * (classes_ + 1) + found_[i]]++;
        measure();
    }

    void succeed(const Op& op) override {
        const auto* const before = dynamic_cast<const SegAccuracy*>(&op);
        if (before && before->classes_ == classes_) pixels_ = before->pixels_;
    }

private:
    // Returns the best class at a position: of equal scores the last one; no class, which is classes_, if a score is
    // NaN, so that a net that has diverged is not right.
    int32_t best_class(int64_t i) const {
        const float* const scores = input(0)->data() + i / inner_ * classes_ * inner_ + i % inner_;
        int64_t best = 0;
        for (int64_t c = 0; c < classes_; c++) {
            if (std::isnan(scores[c * inner_])) return int32_t(classes_);
            if (scores[c * inner_] >= scores[best * inner_]) best = c;
        }
        return int32_t(best);
    }

    // Writes the three numbers. Recall is averaged over the classes that labels have. A class that neither labels nor
    // scores have counts as a perfect overlap.
    void measure() {
        double all = 0, right = 0, recall = 0, overlap = 0;
        int64_t seen = 0;
        for (int64_t c = 0; c < classes_; c++) {
            const int64_t* const of_class = &pixels_[c * (classes_ + 1)];
            int64_t is = of_class[classes_], was_found = 0;
            for (int64_t k = 0; k < classes_; k++) {
                is += of_class[k];
                was_found += pixels_[k * (classes_ + 1) + c];
            }
            const int64_t both = of_class[c], either = is + was_found - both;
            all += double(is);
            right += double(both);
            overlap += either ? double(both) / double(either) : 1;
            if (is == 0) continue;
            recall += double(both) / double(is);
            seen++;
        }
        float* const top = outputs_[0]->data();
        top[0] = all > 0 ? float(right / all) : 0;
        top[1] = seen ? float(recall / double(seen)) : 0;
        top[2] = float(overlap / double(classes_));
    }

    bool reset_;
    int64_t classes_, inner_;
    std::vector<int32_t> found_;
    std::vector<int64_t> pixels_;  // (classes, classes + 1): how many of each true class are found as each, or as none
    Labels labels_;
};

static const RegisterOp<SegAccuracy> registered("SegAccuracy");

}  // namespace
}  // namespace engine
