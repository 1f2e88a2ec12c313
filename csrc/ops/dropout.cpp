// Sets each element to zero with probability `ratio` and scales the others by 1 / (1 - ratio); with ratio 0 (at test
// time) does nothing. inputs: x (N, ...); attributes: ratio. Which elements survive is a function of the seed, the
// layer's name, the step, the sample's place in the global batch and the element's place in the sample: the same on
// however many ranks, and for backward there is no mask to store.
#include "kernels/vectorised.h"
#include "ops/common/dropout_op.h"

namespace engine {
namespace {

// `rows` rows of `lanes` elements, `step` apart in memory; neighbours in a row are `stride` elements apart in the
// sample, rows one.
ENGINE_VECTORISED void drop(const DropoutMask& mask, const float* x, float* y, int64_t rows, int64_t step,
                            int64_t lanes, uint32_t first, uint32_t stride) {
    const DropoutMask local = mask;
    for (int64_t row = 0; row < rows; row++, x += step, y += step, first++) {
#pragma omp simd
        for (int64_t lane = 0; lane < lanes; lane++) y[lane] = x[lane] * local.at(first + uint32_t(lane) * stride);
    }
}

class Dropout : public DropoutOp {
public:
    explicit Dropout(OpSpec spec) : DropoutOp(std::move(spec)) {}

private:
    void apply(const TensorPtr& from, const TensorPtr& to) const override {
        const float* const x = from->data();
        float* const y = to->data();
        const int64_t blocks = rows_.blocks();
#pragma omp parallel for schedule(static) if (!rows_.small())
        for (int64_t panel = 0; panel < rows_.panels(); panel++) {
            const int64_t n = panel / blocks, block = panel % blocks, at = rows_.offset(n, block);
            const DropoutMask kept = mask(n);
            const uint32_t first = uint32_t(block * rows_.lanes * rows_.inner);
            if (rows_.lanes == 1)
                drop(kept, x + at, y + at, 1, 0, rows_.inner, first, 1);
            else
                drop(kept, x + at, y + at, rows_.inner, rows_.inner_stride, rows_.lanes, first, uint32_t(rows_.inner));
        }
    }
};

static const RegisterOp<Dropout> registered("Dropout");

}  // namespace
}  // namespace engine
