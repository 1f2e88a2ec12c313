// Computes the share of sequences whose most probable path, the best class of each step, spells their labels: without
// repetitions and then without blanks. It has no backward.
// inputs: scores (N, T, C), labels (N, L), among which blanks do not count, both float32, row-major; outputs: ();
// attributes: blank.
#include <algorithm>

#include "ops/common/onednn_util.h"

namespace engine {
namespace {

class SequenceAccuracy : public Op {
public:
    explicit SequenceAccuracy(OpSpec spec)
        : Op(std::move(spec)),
          blank_(float(spec_.attributes.integer("blank"))),
          count_(input(0)->shape[0]),
          steps_(input(0)->shape[1]),
          classes_(input(0)->shape[2]),
          labels_(input(1)->count() / count_) {
        output(0, plain_layout({}));
        touch(Pass::forward, {input(0), input(1), outputs_[0]});
    }

    void forward(const dnnl::stream&) override {
        int64_t right = 0;
#pragma omp parallel for schedule(static) reduction(+ : right)
        for (int64_t n = 0; n < count_; n++) right += spells(n);
        outputs_[0]->data()[0] = float(right) / float(count_);
    }

private:
    bool spells(int64_t n) const {
        const float* label = input(1)->data() + n * labels_;
        const float* const end = label + labels_;
        const auto skip_blanks = [&] { label = std::find_if(label, end, [&](float each) { return each != blank_; }); };
        float last = blank_;
        for (int64_t t = 0; t < steps_; t++) {
            const float* const x = input(0)->data() + (n * steps_ + t) * classes_;
            const auto best = float(std::max_element(x, x + classes_) - x);
            if (best != last && best != blank_) {
                skip_blanks();
                if (label == end || *label++ != best) return false;
            }
            last = best;
        }
        skip_blanks();
        return label == end;
    }

    float blank_;
    int64_t count_, steps_, classes_, labels_;
};

static const RegisterOp<SequenceAccuracy> registered("SequenceAccuracy");

}  // namespace
}  // namespace engine
