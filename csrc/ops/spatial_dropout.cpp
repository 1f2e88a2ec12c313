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
        zeros_.resize(rows_.lanes);
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
        input(0)->is_bf16() ? apply_of<bf16>(from, to) : apply_of<float>(from, to);
    }
    template <typename T>
    void apply_of(const TensorPtr& from, const TensorPtr& to) const {
        const PerChannel factors{factors_.data(), rows_.padded_channels()}, zeros{zeros_.data(), 0, 0};
        affine_rows(rows_, address<T>(from), AffineTerms<T>{zeros, factors, zeros}, address<T>(to));
    }

    std::vector<float> factors_, zeros_;  // (N, C), zero in padding; shifts, for all channels
};

static const RegisterOp<SpatialDropout> registered("SpatialDropout");

}  // namespace
}  // namespace engine
