// Sets each element to zero with probability `ratio` and scales the others. Which elements survive is a function of the
// seed, the layer's name, the step, the sample's place in the global batch and the element's place in the sample: it is
// the same on any number of ranks, and no mask is stored for backward.
// inputs, outputs, attributes: see dropout_op.h.
#include "kernels/vectorised.h"
#include "ops/common/dropout_op.h"

namespace engine {
namespace {

// Applies the mask to rows of `lanes` elements, `step` apart in memory. first + places: where the elements of the first
// row lie in the sample; those of the next row lie `further` on.
template <typename T>
ENGINE_VECTORISED void drop(const DropoutMask& mask, const T* x, T* y, int64_t rows, int64_t step, int64_t lanes,
                            const uint32_t* places, uint32_t first, uint32_t further) {
    const DropoutMask local = mask;
    for (int64_t row = 0; row < rows; row++, x += step, y += step, first += further) {
#pragma omp simd
        for (int64_t lane = 0; lane < lanes; lane++) store(number(x[lane]) * local.at(first + places[lane]), y[lane]);
    }
}

class Dropout : public DropoutOp {
public:
    explicit Dropout(OpSpec spec) : DropoutOp(std::move(spec)) {
        if (!masks_) return;
        // Rows of few lanes without a gap between them are done several at a time.
        const int64_t few = 64, lanes = rows_.lanes;
        if (lanes < few && rows_.inner_stride == lanes) together_ = std::min(few / lanes, rows_.inner);
        for (int64_t row = 0; row < together_; row++)
            for (int64_t lane = 0; lane < lanes; lane++) places_.push_back(uint32_t(lane * rows_.inner + row));
    }

private:
    void apply(const TensorPtr& from, const TensorPtr& to) const override {
        input(0)->is_bf16() ? apply_of<bf16>(from, to) : apply_of<float>(from, to);
    }

    template <typename T>
    void apply_of(const TensorPtr& from, const TensorPtr& to) const {
        const T* const x = address<T>(from);
        T* const y = address<T>(to);
        const int64_t blocks = rows_.blocks(), lanes = rows_.lanes, inner = rows_.inner, step = rows_.inner_stride;
        const int64_t whole = inner / together_, rest = inner % together_, done = whole * together_;
#pragma omp parallel for schedule(static) if (!rows_.small())
        for (int64_t panel = 0; panel < rows_.panels(); panel++) {
            const int64_t n = panel / blocks, block = panel % blocks, at = rows_.offset(n, block);
            const DropoutMask kept = mask(n);
            const uint32_t first = uint32_t(block * lanes * inner), last = first + uint32_t(done);
            const uint32_t* const places = places_.data();
            drop(kept, x + at, y + at, whole, step * together_, lanes * together_, places, first, uint32_t(together_));
            if (rest) drop(kept, x + at + done * step, y + at + done * step, 1, 0, lanes * rest, places, last, 0);
        }
    }

    int64_t together_ = 1;  // rows at a time
    std::vector<uint32_t> places_;
};

static const RegisterOp<Dropout> registered("Dropout");

}  // namespace
}  // namespace engine
