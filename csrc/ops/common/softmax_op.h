// Softmax along one axis, in the layout of x: what layers share that begin with it.
#pragma once

#include "kernels/chunks.h"
#include "ops/common/channel_layout.h"
#include "ops/common/onednn_util.h"

namespace engine {

class SoftmaxOp : public Op {
protected:
    using Op::Op;

    // y = softmax(x), which forward() computes. x and y are of one layout, and y may lie in x's memory.
    void add_softmax(const TensorPtr& x, const TensorPtr& y, int axis);
    // Its gradient, which backward() computes; `wanted` may lie in the memory of y->diff.
    void add_softmax_backward(const TensorPtr& wanted);

    Strips strips() const { return {outer_, classes_, inner_, threads_}; }
    // Of one strip, with in_columns_, instead of forward().
    void compute_strip(int64_t n, int64_t begin, int64_t width) const;

    int64_t outer_, classes_, inner_;  // of x, around the axis; add_softmax() sets them
    // A row-major (outer, classes, inner) with inner above 1, where oneDNN has no fast kernel.
    bool in_columns_ = false;

public:
    void forward(const dnnl::stream& stream) override;
    void backward(const dnnl::stream& stream) override;

private:
    ChannelRows rows_{};
    TensorPtr x_, y_, wanted_;
    memory columns_;  // a strip of each of threads_
    int threads_ = 0;
};

}  // namespace engine
