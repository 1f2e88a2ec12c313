// Looks up rows of the weights by number, and adds an optional bias.
// inputs: row numbers (...), float32, row-major; outputs: (..., num_output); attributes: bias.
// params: weights (input_dim, num_output), bias (num_output).
#include "kernels/row_index.h"
#include "kernels/sum_columns.h"
#include "op.h"

namespace engine {
namespace {

class Embed : public Op {
public:
    explicit Embed(OpSpec spec)
        : Op(std::move(spec)),
          bias_(spec_.attributes.flag("bias")),
          inputs_(param(0)->count() / spec_.output_shapes.at(0).back()),  // its shape may be another layer's
          width_(spec_.output_shapes.at(0).back()),
          rows_(input(0)->count()) {
        for (size_t i = 0; i < spec_.params.size(); i++) plain_param(i);
        output(0, plain_layout(spec_.output_shapes[0]));
        touch(Pass::forward, {input(0), outputs_[0]});
        if (needs_backward() && output_gradient(0)) touch(Pass::backward, outputs_[0]->diff);
        if (bias_ && param_gradient(1)) of_blocks_ = scratch(plain_layout({blocks_of(int64_t(rows_.size())), width_}));
    }

    void forward(const dnnl::stream&) override {
        read_rows(spec_.name, input(0)->data(), inputs_, rows_);
        float* const y = outputs_[0]->data();
        gather_rows(param(0)->data(), rows_, width_, y);
        if (!bias_) return;
        const float* const bias = param(1)->data();
        const int64_t count = int64_t(rows_.size());
#pragma omp parallel for schedule(static)
        for (int64_t i = 0; i < count; i++)
            for (int64_t j = 0; j < width_; j++) y[i * width_ + j] += bias[j];
    }

    void backward(const dnnl::stream&) override {
        const float* const given = outputs_[0]->diff->data();
        if (param_gradient(0)) {
            const TensorPtr& diff = param(0)->diff;
            scatter_rows(given, rows_, width_, diff->data(), inputs_, diff->accumulate, senders_);
        }
        if (bias_ && param_gradient(1)) {
            const TensorPtr& diff = param(1)->diff;
            sum_columns(given, int64_t(rows_.size()), width_, address<float>(of_blocks_), diff->data(),
                        diff->accumulate);
        }
    }

private:
    bool bias_;
    int64_t inputs_, width_;
    std::vector<int64_t> rows_;
    RowSenders senders_;
    dnnl::memory of_blocks_;  // scratch: partial sums for the gradient of the bias
};

static const RegisterOp<Embed> registered("Embed");

}  // namespace
}  // namespace engine
