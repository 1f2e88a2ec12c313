// Dropout of whole channels: each is zero with probability `ratio`, the others are scaled by 1 / (1 - ratio); with
// ratio 0 (at test time) does nothing. inputs: x (N, C, ...); attributes: ratio. Which channels survive is counted as
// in Dropout.
#include <optional>
#include <stdexcept>

#include "channel_rows.h"
#include "dropout_mask.h"

namespace engine {

class SpatialDropout : public Op {
public:
    explicit SpatialDropout(OpSpec spec) : Op(std::move(spec)) {
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
        factors_.resize(rows_.outer * rows_.padded_channels());
        shifts_.resize(factors_.size());
        touch(Pass::forward, output(0, x->layout));
        may_overwrite(Pass::forward, x, outputs_[0]);
        if (!input_gradient(0) || !output_gradient(0)) return;
        touch(Pass::backward, {outputs_[0]->diff, x->diff});
        may_overwrite(Pass::backward, outputs_[0]->diff, x->diff);
    }

    void forward(const dnnl::stream&) override {
        if (!masks_) return;
        for (int64_t n = 0; n < rows_.outer; n++) {
            const DropoutMask mask = masks_->of(*spec_.counter, n);
            float* const factors = factors_.data() + n * rows_.padded_channels();
            for (int64_t channel = 0; channel < rows_.channels; channel++)
                factors[channel] = mask.at(uint32_t(channel));
        }
        apply(input(0), outputs_[0]);
    }
    void backward(const dnnl::stream&) override {
        if (masks_) apply(outputs_[0]->diff, input(0)->diff);
    }

private:
    void apply(const TensorPtr& from, const TensorPtr& to) const {
        affine_rows(rows_, from->data(), factors_.data(), shifts_.data(), true, to->data());
    }

    ChannelRows rows_{};
    std::optional<DropoutMasks> masks_;    // none where the layer does nothing
    std::vector<float> factors_, shifts_;  // (N, C), zero in padding; all shifts are zero
};

static const RegisterOp<SpatialDropout> registered("SpatialDropout");

}  // namespace engine
