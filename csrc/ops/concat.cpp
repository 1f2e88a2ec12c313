// Blobs one after the other along an axis.
// inputs: one or more that agree in all other axes; attributes: axis.
#include <algorithm>

#include "ops/common/parts.h"

namespace engine {
namespace {

class Concat : public Parts {
public:
    explicit Concat(OpSpec spec) : Parts(std::move(spec)) {
        if (spec_.inputs.size() == 1) {
            output_view(0, input(0)->layout, input(0), true);
            touch(Pass::forward, input(0));
            if (input_gradient(0)) touch(Pass::backward, input(0)->diff);
            return;
        }
        const int64_t axis = spec_.attributes.integer("axis");
        output(0, best_layout(axis));
        touch(Pass::forward, outputs_[0]);
        int64_t offset = 0;
        for (const auto& part : spec_.inputs) {
            const Dims dims = part->layout.get_dims();
            copy(part->memory, piece(outputs_[0], axis, offset, dims), forward_calls_);
            touch(Pass::forward, part);
            if (part->diff && output_gradient(0)) {
                copy(piece(outputs_[0]->diff, axis, offset, dims), part->diff->memory, backward_calls_);
                touch(Pass::backward, {outputs_[0]->diff, part->diff});
            }
            offset += dims[axis];
        }
    }

private:
    // Like the largest input's, unless inputs would begin within a block.
    Layout best_layout(int64_t axis) const {
        std::vector<Dims> parts;
        for (const auto& part : spec_.inputs) parts.push_back(part->layout.get_dims());
        const auto smaller = [](const TensorPtr& a, const TensorPtr& b) { return a->count() < b->count(); };
        const TensorPtr& largest = *std::max_element(spec_.inputs.begin(), spec_.inputs.end(), smaller);
        const Layout wanted = layout_like(largest->layout, spec_.output_shapes[0], largest->layout.get_data_type());
        return divides(wanted, axis, parts) ? wanted : plain_layout(wanted.get_dims(), wanted.get_data_type());
    }
};

static const RegisterOp<Concat> registered("Concat");

}  // namespace
}  // namespace engine
