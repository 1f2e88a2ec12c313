// Rows of a blob in another order, some of them several times or not at all.
// inputs: x (N, ...) and row numbers (M), both row-major; outputs: (M, ...).
#include "../op.h"
#include "row_index.h"

namespace engine {

class BatchReindex : public Op {
public:
    explicit BatchReindex(OpSpec spec)
        : Op(std::move(spec)),
          count_(input(0)->shape.at(0)),
          width_(input(0)->count() / count_),
          rows_(input(1)->count()) {
        output(0, plain_layout(spec_.output_shapes[0]));
        touch(Pass::forward, {input(0), input(1), outputs_[0]});
        if (input_gradient(0) && output_gradient(0)) touch(Pass::backward, {outputs_[0]->diff, input(0)->diff});
    }

    void forward(const dnnl::stream&) override {
        read_rows(spec_.name, input(1)->data(), count_, rows_);
        gather_rows(input(0)->data(), rows_, width_, outputs_[0]->data());
    }

    void backward(const dnnl::stream&) override {
        scatter_rows(outputs_[0]->diff->data(), rows_, width_, input(0)->diff->data(), count_, false);
    }

private:
    int64_t count_, width_;
    std::vector<int64_t> rows_;
};

static const RegisterOp<BatchReindex> registered("BatchReindex");

}  // namespace engine
