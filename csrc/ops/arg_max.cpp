// Finds the top_k largest values along an axis, the largest first, or their places on it. Of equal values the last
// comes first. It has no backward.
// inputs: x (outer, classes, inner), float32, row-major; outputs: (outer, top_k, inner), or with `pairs` (outer, 2,
// top_k), places and then values; attributes: axis, top_k, values (instead of places), pairs (only if inner is 1).
#include <algorithm>
#include <functional>
#include <utility>

#include "kernels/vectorised.h"
#include "ops/common/elementwise.h"

namespace engine {
namespace {

// Finds the largest value of each of `width` columns, whose rows are `step` apart. A NaN replaces the values above it,
// and is replaced by the next one.
ENGINE_VECTORISED void largest(const float* x, int64_t classes, int64_t step, int64_t width, float* best,
                               float* place) {
    std::copy_n(x, width, best);
    std::fill_n(place, width, 0.f);
    for (int64_t c = 1; c < classes; c++) {
        const float* const row = x + c * step;
        const auto number = float(c);
#pragma omp simd
        for (int64_t i = 0; i < width; i++) {
            const bool stays = best[i] > row[i];
            best[i] = stays ? best[i] : row[i];
            place[i] = stays ? place[i] : number;
        }
    }
}

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
        if (top_k_ == 1 && inner_ > 1) return find_largest();
#pragma omp parallel if (positions_ * classes_ > chunk_size)
        {
            std::vector<Entry> entries(classes_);
#pragma omp for schedule(static)
            for (int64_t position = 0; position < positions_; position++) find(position, entries);
        }
    }

private:
    void find_largest() const {
        const float* const x = input(0)->data();
        float* const y = outputs_[0]->data();
        Strips{positions_ / inner_, classes_, inner_}.each([=, this](int64_t, int64_t n, int64_t begin, int64_t width) {
            alignas(64) float best[Strips::widest], place[Strips::widest];
            largest(x + n * classes_ * inner_ + begin, classes_, inner_, width, best, place);
            std::copy_n(values_ ? best : place, width, y + n * inner_ + begin);
        });
    }

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
