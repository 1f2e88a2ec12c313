// Computes x where it is positive, else x / a. a is uniform in [lower, upper), another one for each element of each
// sample at each step. Like Dropout's choices it is counted (kernels/dropout_mask.h), and not stored for backward.
// inputs: x (N, ...), float32, any layout with rows of channels; outputs: as x; attributes: lower, upper.

#include "kernels/dropout_mask.h"
#include "op.h"
#include "ops/common/channel_layout.h"

namespace engine {
namespace {

class Insanity : public Op {
public:
    explicit Insanity(OpSpec spec)
        : Op(std::move(spec)),
          lower_(float(spec_.attributes.real("lower"))),
          range_(float(spec_.attributes.real("upper")) - lower_),
          choices_(spec_.name) {
        const TensorPtr& x = input(0);
        rows_ = known_rows(x->layout);
        touch(Pass::forward, {x, output(0, x->layout)});
        may_overwrite(Pass::forward, x, outputs_[0]);
        if (!input_gradient(0) || !output_gradient(0)) return;
        touch(Pass::backward, {signs(), outputs_[0]->diff, x->diff});
        may_overwrite(Pass::backward, outputs_[0]->diff, x->diff);
    }

    void forward(const dnnl::stream&) override { apply(input(0), input(0), outputs_[0]); }
    void backward(const dnnl::stream&) override {
        if (touched(Pass::backward).empty()) return;
        apply(signs(), outputs_[0]->diff, input(0)->diff);
    }

private:
    // Returns a blob that has the signs of x: y, if a is positive.
    const TensorPtr& signs() const { return lower_ > 0 ? outputs_[0] : input(0); }

    // Writes `from`, divided by a where `signed_as` is not positive, to `to`. All are laid out as x; some may be one
    // memory.
    void apply(const TensorPtr& signed_as, const TensorPtr& from, const TensorPtr& to) const {
        const float *const signs = signed_as->data(), *const given = from->data();
        float* const y = to->data();
        const Counter& counter = *spec_.counter;
        const int64_t blocks = rows_.blocks(), lanes = rows_.lanes, inner = rows_.inner;
        const int64_t step = lanes == 1 ? 1 : rows_.inner_stride;
#pragma omp parallel for schedule(static) if (!rows_.small())
        for (int64_t panel = 0; panel < rows_.panels(); panel++) {
            const int64_t n = panel / blocks, block = panel % blocks, at = rows_.offset(n, block);
            const DropoutMask choice = choices_.of(counter.seed, counter.step, counter.row(n, input(0)->shape[0]));
            for (int64_t i = 0; i < inner; i++)
                for (int64_t lane = 0; lane < lanes; lane++) {
                    const int64_t k = at + i * step + lane;
                    const auto element = uint32_t((block * lanes + lane) * inner + i);
                    const float divisor = lower_ + range_ * choice.uniform(element);
                    y[k] = signs[k] > 0 ? given[k] : given[k] / divisor;
                }
        }
    }

    float lower_, range_;
    DropoutMasks choices_;
    ChannelRows rows_{};
};

static const RegisterOp<Insanity> registered("Insanity");

}  // namespace
}  // namespace engine
