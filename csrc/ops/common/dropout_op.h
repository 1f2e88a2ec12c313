// The base of Dropout and SpatialDropout: y = x times a mask. If the mask is all 1 (at test time), y is a view of x,
// unless Python may change y alone.
#pragma once

#include <optional>

#include "kernels/bf16.h"
#include "kernels/dropout_mask.h"
#include "op.h"
#include "ops/common/channel_layout.h"

namespace engine {

class DropoutOp : public Op {
public:
    void forward(const dnnl::stream&) override {
        if (masks_) apply(input(0), outputs_[0]);
    }
    void backward(const dnnl::stream&) override {
        if (masks_) apply(outputs_[0]->diff, input(0)->diff);
    }

protected:
    // inputs: x (N, ...), float32 or bf16, any layout with rows of channels; outputs: as x; attributes: ratio, scale
    // (the factor of what is not dropped; default: 1 / (1 - ratio)).
    explicit DropoutOp(OpSpec spec) : Op(std::move(spec)) {
        const TensorPtr& x = input(0);
        const double ratio = spec_.attributes.real("ratio"), scale = spec_.attributes.real("scale", 1 / (1 - ratio));
        touch(Pass::forward, x);
        if (ratio == 0 && scale == 1 && !spec_.keep_all) {
            output_view(0, x->layout, x, true);
            if (input_gradient(0)) touch(Pass::backward, x->diff);
            return;
        }
        rows_ = known_rows(x->layout);
        masks_.emplace(spec_.name, ratio, scale);
        touch(Pass::forward, output(0, x->layout));
        may_overwrite(Pass::forward, x, outputs_[0]);
        if (!input_gradient(0) || !output_gradient(0)) return;
        touch(Pass::backward, {outputs_[0]->diff, x->diff});
        may_overwrite(Pass::backward, outputs_[0]->diff, x->diff);
    }

    // Writes `from` times the mask of this step to `to`. Both are laid out as x, and may be one memory.
    virtual void apply(const TensorPtr& from, const TensorPtr& to) const = 0;

    // Returns the mask of row n of this rank's batch, at this step.
    DropoutMask mask(int64_t n) const {
        const Counter& counter = *spec_.counter;
        return masks_->of(counter.seed, counter.step, counter.row(n, input(0)->shape[0]));
    }

    ChannelRows rows_{};
    std::optional<DropoutMasks> masks_;  // none if y is a view of x
};

}  // namespace engine
