// Runs the Python code of a layer, which finds all blobs in row-major order.
// inputs, outputs: bottoms and tops, float32, row-major; attributes: run, which is called with false for forward and
// true for backward.
// params: any.
#include "op.h"

namespace engine {
namespace {

class Python : public Op {
public:
    explicit Python(OpSpec spec) : Op(std::move(spec)), run_(spec_.attributes.callback("run")) {
        for (size_t i = 0; i < spec_.params.size(); i++) plain_param(i);
        for (size_t i = 0; i < outputs_.size(); i++) output(i, plain_layout(spec_.output_shapes[i]));
        // The code may read or write any blob in either pass.
        for (const auto* tensors : {&spec_.inputs, &outputs_}) {
            for (const auto& tensor : *tensors) {
                touch(Pass::forward, tensor);
                touch(Pass::backward, tensor);
                if (spec_.backward && tensor->diff) touch(Pass::backward, tensor->diff);
            }
        }
    }

    void forward(const dnnl::stream&) override { run_(false); }
    void backward(const dnnl::stream&) override { run_(true); }

private:
    Attributes::Callback run_;
};

static const RegisterOp<Python> registered("Python");

}  // namespace
}  // namespace engine
