// The largest values along an axis, the largest first, or where they stand there. Of equal ones the last comes first.
// inputs: x, row-major (outer, classes, inner); outputs: (outer, top_k, inner), or (outer, 2, top_k) with `pairs`:
// places and then values; attributes: axis, top_k, values (instead of places), pairs (inner is 1).
#include <algorithm>
#include <functional>
#include <utility>

#include "ops/common/elementwise.h"

namespace engine {
namespace {

class ArgMax : public Op {
public:
    explicit ArgMax(OpSpec spec)
        : Op(std::move(spec)),
          top_k_(spec_.attributes.integer("top_k")),
          values_(spec_.attributes.flag("values")),
          pairs_(spec_.attributes.flag("pairs")) {
        const Dims& shape = input(0)->shape;
        const int64_t axis = spec_.attributes.integer("axis");
        classes_ = shape.at(axis);
        inner_ = count_of({shape.begin() + axis + 1, shape.end()});
        positions_ = input(0)->count() / classes_;
        output(0, plain_layout(spec_.output_shapes[0]));
        touch(Pass::forward, {input(0), outputs_[0]});
    }

    void forward(const dnnl::stream&) override {
#pragma omp parallel if (positions_ * classes_ > chunk_size)
        {
            std::vector<Entry> entries(classes_);
#pragma omp for schedule(static)
            for (int64_t position = 0; position < positions_; position++) find(position, entries);
        }
    }

private:
    using Entry = std::pair<float, int64_t>;

    void find(int64_t position, std::vector<Entry>& entries) const {
        const int64_t outer = position / inner_, inner = position % inner_;
        const float* const x = input(0)->data() + outer * classes_ * inner_ + inner;
        for (int64_t i = 0; i < classes_; i++) entries[i] = {x[i * inner_], i};
        std::partial_sort(entries.begin(), entries.begin() + top_k_, entries.end(), std::greater<Entry>());
        float* const y = outputs_[0]->data() + outer * (pairs_ ? 2 : 1) * top_k_ * inner_ + inner;
        for (int64_t i = 0; i < top_k_; i++) {
            y[i * inner_] = values_ ? entries[i].first : float(entries[i].second);
            if (pairs_) y[top_k_ + i] = entries[i].first;
        }
    }

    int64_t top_k_;
    bool values_, pairs_;
    int64_t classes_, inner_, positions_;
};

static const RegisterOp<ArgMax> registered("ArgMax");

}  // namespace
}  // namespace engine
