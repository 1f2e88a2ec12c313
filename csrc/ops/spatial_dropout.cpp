// Sets whole channels of a sample to zero with probability `ratio` and scales the others. Which channels survive is
// counted as in Dropout.
// inputs, outputs, attributes: see dropout_op.h.
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

    std::vector<float> factors_, zeros_;  // factors_: (N, padded C), zero in padding; zeros_: shifts for all channels
};

static const RegisterOp<SpatialDropout> registered("SpatialDropout");

}  // namespace
}  // namespace engine
