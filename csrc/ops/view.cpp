// Gives a blob another shape without a copy, for Reshape and Flatten.
// inputs: x, float32 or bf16, row-major; outputs: a view of x.
#include "ops/common/onednn_util.h"

namespace engine {
namespace {

class View : public Op {
public:
    explicit View(OpSpec spec) : Op(std::move(spec)) {
        output_view(0, plain_layout(spec_.output_shapes[0], input(0)->layout.get_data_type()), input(0), true);
        touch(Pass::forward, input(0));
        if (input_gradient(0)) touch(Pass::backward, input(0)->diff);
    }
};

static const RegisterOp<View> registered("View");

}  // namespace
}  // namespace engine
