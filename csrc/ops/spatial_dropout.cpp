// Dropout of whole channels: each is zero with probability `ratio`, the others are scaled by 1 / (1 - ratio); with
// ratio 0 (at test time) does nothing. inputs: x (N, C, ...); attributes: ratio. Which channels survive is counted as
// in Dropout.
#include "ops/common/dropout_op.h"

namespace engine {
namespace {

class SpatialDropout : public DropoutOp {
public:
    explicit SpatialDropout(OpSpec spec) : DropoutOp(std::move(spec)) {
        if (!masks_) return;
        factors_.resize(rows_.outer * rows_.padded_channels());
        shifts_.resize(factors_.size());
    }

    void forward(const dnnl::stream& stream) override {
        if (!masks_) return;
        for (int64_t n = 0; n < rows_.outer; n++) {
            const DropoutMask kept = mask(n);
            float* const factors = factors_.data() + n * rows_.padded_channels();
            for (int64_t channel = 0; channel < rows_.channels; channel++)
                factors[channel] = kept.at(uint32_t(channel));
        }
        DropoutOp::forward(stream);
    }

private:
    void apply(const TensorPtr& from, const TensorPtr& to) const override {
        affine_rows(rows_, from->data(), factors_.data(), shifts_.data(), true, to->data());
    }

    std::vector<float> factors_, shifts_;  // (N, C), zero in padding; all shifts are zero
};

static const RegisterOp<SpatialDropout> registered("SpatialDropout");

}  // namespace
}  // namespace engine
