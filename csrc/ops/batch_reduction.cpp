// Computes the sum or mean of each group of neighbouring terms along an axis, or the mean of its top_k greatest terms.
// inputs: x (outer, places, inner), float32, row-major; outputs: (outer, groups, inner); attributes: outer; counts (the
// terms of each group); stride (places from a term to the next: 1, or more with a single group); mean; top_k (0: all
// terms).
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "kernels/chunks.h"
#include "ops/common/onednn_util.h"

namespace engine {
namespace {

class BatchReduction : public Op {
public:
    explicit BatchReduction(OpSpec spec)
        : Op(std::move(spec)),
          counts_(spec_.attributes.integers("counts")),
          stride_(spec_.attributes.integer("stride")),
          top_k_(spec_.attributes.integer("top_k")),
          mean_(spec_.attributes.flag("mean")),
          rows_(spec_.attributes.integer("outer") * int64_t(counts_.size())),
          inner_(count_of(spec_.output_shapes[0]) / rows_),
          places_(input(0)->count() / inner_ / (rows_ / int64_t(counts_.size()))) {
        output(0, plain_layout(spec_.output_shapes[0]));
        touch(Pass::forward, {input(0), outputs_[0]});
        if (!input_gradient(0) || !output_gradient(0)) return;
        touch(Pass::backward, {outputs_[0]->diff, input(0)->diff});
        if (top_k_ > 0) touch(Pass::backward, input(0));
    }

    void forward(const dnnl::stream&) override {
        each_strip([&](const Strip& strip) {
            const float* const x = input(0)->data() + strip.first;
            float* const y = outputs_[0]->data() + strip.result;
            std::fill_n(y, strip.width, 0.f);
            if (top_k_ > 0)
                return greatest(strip, x, [&](int64_t i, int64_t term) { y[i] += x[term] / float(top_k_); });
            for (int64_t term = 0; term < strip.count; term++) {
                const float* const values = x + term * stride_ * inner_;
                for (int64_t i = 0; i < strip.width; i++) y[i] += strip.share * values[i];
            }
        });
    }

    void backward(const dnnl::stream&) override {
        if (touched(Pass::backward).empty()) return;
        each_strip([&](const Strip& strip) {
            const float* const given = outputs_[0]->diff->data() + strip.result;
            float* const wanted = input(0)->diff->data() + strip.first;
            if (top_k_ > 0 || stride_ > 1)
                for (int64_t place = 0; place < (stride_ > 1 ? places_ : strip.count); place++)
                    std::fill_n(wanted + place * inner_, strip.width, 0.f);
            if (top_k_ > 0)
                return greatest(strip, input(0)->data() + strip.first,
                                [&](int64_t i, int64_t term) { wanted[term] = given[i] / float(top_k_); });
            for (int64_t term = 0; term < strip.count; term++) {
                float* const values = wanted + term * stride_ * inner_;
                for (int64_t i = 0; i < strip.width; i++) values[i] = strip.share * given[i];
            }
        });
    }

private:
    // Neighbours in a row of the top, which begin at `result`; the terms of their group begin at `first` in x.
    struct Strip {
        int64_t first, result, width, count;  // width: neighbours; count: terms
        float share;                          // the factor of each term
    };

    // Calls work(strip) for all, in parallel.
    template <typename Work>
    void each_strip(const Work& work) const {
        const auto groups = int64_t(counts_.size());
        Strips{rows_, places_, inner_}.each([&](int64_t, int64_t row, int64_t begin, int64_t width) {
            const int64_t group = row % groups, count = counts_[group];
            const int64_t before = std::accumulate(counts_.begin(), counts_.begin() + group, int64_t(0));
            const int64_t place = row / groups * places_ + before;
            work({place * inner_ + begin, row * inner_ + begin, width, count, mean_ ? 1 / float(count) : 1});
        });
    }

    // Calls take(i, offset of the term) for the top_k greatest terms of each column i of a strip; of equal ones for the
    // first. NaN counts as the greatest.
    template <typename Take>
    void greatest(const Strip& strip, const float* x, const Take& take) const {
        std::vector<std::pair<float, int64_t>> terms(strip.count);
        for (int64_t i = 0; i < strip.width; i++) {
            for (int64_t term = 0; term < strip.count; term++) {
                const int64_t at = term * stride_ * inner_ + i;
                terms[term] = {std::isnan(x[at]) ? -std::numeric_limits<float>::infinity() : -x[at], at};
            }
            std::partial_sort(terms.begin(), terms.begin() + top_k_, terms.end());
            for (int64_t k = 0; k < top_k_; k++) take(i, terms[k].second);
        }
    }

    Dims counts_;
    int64_t stride_, top_k_;
    bool mean_;
    int64_t rows_, inner_, places_;
};

static const RegisterOp<BatchReduction> registered("BatchReduction");

}  // namespace
}  // namespace engine
