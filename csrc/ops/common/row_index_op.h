// The base of BatchReindex and Filter: each row of the top is a row of the bottom, or zero.
#pragma once

#include "kernels/row_index.h"
#include "ops/common/parts.h"

namespace engine {

class RowIndexOp : public Op {
public:
    void forward(const dnnl::stream&) override {
        choose(input(1)->data(), count_, rows_);
        narrow_ ? gather<bf16>() : gather<float>();
    }

    void backward(const dnnl::stream&) override { narrow_ ? scatter<bf16>() : scatter<float>(); }

protected:
    // inputs: x (N, ...), float32 or bf16, in any layout whose samples lie one after the other, and what choose()
    // reads, one number for each row of the top, float32, row-major; outputs: (M, ...), as x.
    explicit RowIndexOp(OpSpec spec)
        : Op(std::move(spec)),
          narrow_(input(0)->is_bf16()),
          count_(input(0)->shape.at(0)),
          width_(int64_t(input(0)->layout.get_size()) / (narrow_ ? 2 : 4) / count_),
          rows_(input(1)->count()) {
        const Layout& layout = input(0)->layout;
        output(0, layout_like(layout, spec_.output_shapes[0], layout.get_data_type()));
        touch(Pass::forward, {input(0), input(1), outputs_[0]});
        if (input_gradient(0) && output_gradient(0)) touch(Pass::backward, {outputs_[0]->diff, input(0)->diff});
    }

    // Sets rows[i] to the row of x, of `count`, that row i of the top is; to a negative number if it is zero.
    virtual void choose(const float* values, int64_t count, std::vector<int64_t>& rows) const = 0;

private:
    template <typename T>
    void gather() const {
        gather_rows(address<T>(input(0)), rows_, width_, address<T>(outputs_[0]));
    }

    template <typename T>
    void scatter() {
        scatter_rows(address<T>(outputs_[0]->diff), rows_, width_, address<T>(input(0)->diff), count_, false, senders_);
    }

    bool narrow_;
    int64_t count_, width_;
    std::vector<int64_t> rows_;
    RowSenders senders_;
};

}  // namespace engine
