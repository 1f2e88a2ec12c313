// Fills a blob with values that are known when the net is built. It has no inputs. outputs: float32, row-major;
// attributes: values (in row-major order; if the blob has more elements, each stands for equally many neighbours).
#include <algorithm>

#include "ops/common/onednn_util.h"

namespace engine {
namespace {

class Constant : public Op {
public:
    explicit Constant(OpSpec spec) : Op(std::move(spec)) {
        const std::vector<double> values = spec_.attributes.reals("values");
        values_.assign(values.begin(), values.end());
        each_ = output(0, plain_layout(spec_.output_shapes[0]))->count() / int64_t(values_.size());
        touch(Pass::forward, outputs_[0]);
    }

    // The blob is filled every time, because the memory plan may use its memory for others.
    void forward(const dnnl::stream&) override {
        float* at = outputs_[0]->data();
        for (const float value : values_) at = std::fill_n(at, each_, value);
    }

private:
    std::vector<float> values_;
    int64_t each_;
};

static const RegisterOp<Constant> registered("Constant");

}  // namespace
}  // namespace engine
