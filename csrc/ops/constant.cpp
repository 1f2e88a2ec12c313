// A blob whose values are known when the net is built.
// attributes: values, in row-major order.
#include <algorithm>

#include "ops/common/onednn_util.h"

namespace engine {
namespace {

class Constant : public Op {
public:
    explicit Constant(OpSpec spec) : Op(std::move(spec)) {
        const std::vector<double> values = spec_.attributes.reals("values");
        values_.assign(values.begin(), values.end());
        output(0, plain_layout(spec_.output_shapes[0]));
        touch(Pass::forward, outputs_[0]);
    }

    // Each time: the memory plan may use the blob's memory for others.
    void forward(const dnnl::stream&) override { std::copy(values_.begin(), values_.end(), outputs_[0]->data()); }

private:
    std::vector<float> values_;
};

static const RegisterOp<Constant> registered("Constant");

}  // namespace
}  // namespace engine
