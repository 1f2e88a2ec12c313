// Sets each element to zero with probability `ratio` and scales the others by 1 / (1 - ratio); with ratio 0 (at test
// time) does nothing. inputs: x (N, ...); attributes: ratio. Which elements survive is a function of the seed, the
// layer's name, the step, the sample's place in the global batch and the element's place in the sample: the same on
// however many ranks, and for backward there is no mask to store.
#include <optional>
#include <stdexcept>

#include "channel_rows.h"
#include "dropout_mask.h"
#include "vectorised.h"

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

}  // namespace

class Dropout : public Op {
public:
    explicit Dropout(OpSpec spec) : Op(std::move(spec)) {
        const TensorPtr& x = input(0);
        const double ratio = spec_.attributes.real("ratio");
        touch(Pass::forward, x);
        if (ratio == 0) {
            output_view(0, x->layout, x, true);
            if (input_gradient(0)) touch(Pass::backward, x->diff);
            return;
        }
        const auto rows = ChannelRows::of(x->layout);
        if (!rows) throw std::invalid_argument("no kernel for a blob laid out as " + layout_name(x->layout));
        rows_ = *rows;
        masks_.emplace(spec_.name, ratio);
        touch(Pass::forward, output(0, x->layout));
        may_overwrite(Pass::forward, x, outputs_[0]);
        if (!input_gradient(0) || !output_gradient(0)) return;
        touch(Pass::backward, {outputs_[0]->diff, x->diff});
        may_overwrite(Pass::backward, outputs_[0]->diff, x->diff);
    }

    void forward(const dnnl::stream&) override {
        if (masks_) apply(input(0), outputs_[0]);
    }
    void backward(const dnnl::stream&) override {
        if (masks_) apply(outputs_[0]->diff, input(0)->diff);
    }

private:
    void apply(const TensorPtr& from, const TensorPtr& to) const {
        const float* const x = from->data();
        float* const y = to->data();
        const int64_t blocks = rows_.blocks();
#pragma omp parallel for schedule(static) if (!rows_.small())
        for (int64_t panel = 0; panel < rows_.panels(); panel++) {
            const int64_t n = panel / blocks, block = panel % blocks, at = rows_.offset(n, block);
            const DropoutMask mask = masks_->of(*spec_.counter, n);
            const uint32_t first = uint32_t(block * rows_.lanes * rows_.inner);
            if (rows_.lanes == 1)
                drop(mask, x + at, y + at, 1, 0, rows_.inner, first, 1);
            else
                drop(mask, x + at, y + at, rows_.inner, rows_.inner_stride, rows_.lanes, first, uint32_t(rows_.inner));
        }
    }

    ChannelRows rows_{};
    std::optional<DropoutMasks> masks_;  // none where the layer does nothing
};

static const RegisterOp<Dropout> registered("Dropout");

}  // namespace engine
