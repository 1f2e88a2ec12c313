// Copies a parameter to a blob. It has no inputs.
// params: one, of any shape; outputs: its values, float32, row-major.
#include <algorithm>

#include "op.h"

namespace engine {
namespace {

class Parameter : public Op {
public:
    explicit Parameter(OpSpec spec) : Op(std::move(spec)) {
        plain_param(0);
        output(0, plain_layout(spec_.output_shapes[0]));
        touch(Pass::forward, outputs_[0]);
        if (param_gradient(0)) touch(Pass::backward, outputs_[0]->diff);
    }

    void forward(const dnnl::stream&) override {
        std::copy_n(param(0)->data(), param(0)->count(), outputs_[0]->data());
    }

    void backward(const dnnl::stream&) override {
        const TensorPtr& diff = param(0)->diff;
        const float* const given = outputs_[0]->diff->data();
        float* const into = diff->data();
        for (int64_t i = 0; i < diff->count(); i++) into[i] = given[i] + (diff->accumulate ? into[i] : 0.f);
    }
};

static const RegisterOp<Parameter> registered("Parameter");

}  // namespace
}  // namespace engine
