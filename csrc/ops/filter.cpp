// The rows of a blob whose selector is not zero, in their order, and then zeros.
// inputs: x (N, ...) and the selector (N), both row-major; outputs: x's shape.
#include <algorithm>

#include "../op.h"
#include "row_index.h"

namespace engine {

class Filter : public Op {
public:
    explicit Filter(OpSpec spec)
        : Op(std::move(spec)), count_(input(0)->shape.at(0)), width_(input(0)->count() / count_), rows_(count_) {
        output(0, plain_layout(spec_.output_shapes[0]));
        touch(Pass::forward, {input(0), input(1), outputs_[0]});
        if (input_gradient(0) && output_gradient(0)) touch(Pass::backward, {outputs_[0]->diff, input(0)->diff});
    }

    void forward(const dnnl::stream&) override {
        const float* const selector = input(1)->data();
        auto next = rows_.begin();
        for (int64_t row = 0; row < count_; row++)
            if (selector[row] != 0) *next++ = row;
        std::fill(next, rows_.end(), -1);
        gather_rows(input(0)->data(), rows_, width_, outputs_[0]->data());
    }

    void backward(const dnnl::stream&) override {
        scatter_rows(outputs_[0]->diff->data(), rows_, width_, input(0)->diff->data(), count_, false);
    }

private:
    int64_t count_, width_;
    std::vector<int64_t> rows_;
};

static const RegisterOp<Filter> registered("Filter");

}  // namespace engine
