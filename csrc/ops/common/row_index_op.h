// What BatchReindex and Filter have in common: each row of the top is a row of the bottom, or zero.
#pragma once

#include "kernels/row_index.h"
#include "op.h"

namespace engine {

class RowIndexOp : public Op {
public:
    void forward(const dnnl::stream&) override {
        choose(input(1)->data(), count_, rows_);
        gather_rows(input(0)->data(), rows_, width_, outputs_[0]->data());
    }

    void backward(const dnnl::stream&) override {
        scatter_rows(outputs_[0]->diff->data(), rows_, width_, input(0)->diff->data(), count_, false);
    }

protected:
    // inputs: x (N, ...) and what tells which rows, one number each, all row-major; outputs: (M, ...).
    explicit RowIndexOp(OpSpec spec)
        : Op(std::move(spec)),
          count_(input(0)->shape.at(0)),
          width_(input(0)->count() / count_),
          rows_(input(1)->count()) {
        output(0, plain_layout(spec_.output_shapes[0]));
        touch(Pass::forward, {input(0), input(1), outputs_[0]});
        if (input_gradient(0) && output_gradient(0)) touch(Pass::backward, {outputs_[0]->diff, input(0)->diff});
    }

    // Row i of the top is to be row rows[i] of the `count` rows of x, or zero where that is negative.
    virtual void choose(const float* values, int64_t count, std::vector<int64_t>& rows) const = 0;

private:
    int64_t count_, width_;
    std::vector<int64_t> rows_;
};

}  // namespace engine
