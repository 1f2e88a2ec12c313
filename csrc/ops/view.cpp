// The same bytes under another shape: Reshape and Flatten of a row-major tensor. Costs nothing.
// inputs: x, row-major.
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
