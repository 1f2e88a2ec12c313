// The base of ops that begin with a softmax along one axis, float32, in the layout of x.
#pragma once

#include "kernels/chunks.h"
#include "ops/common/channel_layout.h"
#include "ops/common/onednn_util.h"

namespace engine {

class SoftmaxOp : public Op {
protected:
    using Op::Op;

    // Makes forward() compute y = softmax(x). x and y have one layout, and y may lie in x's memory.
    void add_softmax(const TensorPtr& x, const TensorPtr& y, int axis);
    // Makes backward() compute the gradient of x, `wanted`, which may lie in the memory of y->diff.
    void add_softmax_backward(const TensorPtr& wanted);

    Strips strips() const { return {outer_, classes_, inner_, threads_}; }
    // Computes one strip: with in_columns_, an op may call this for all strips instead of forward().
    void compute_strip(int64_t n, int64_t begin, int64_t width) const;

    int64_t outer_, classes_, inner_;  // of x, around the axis; add_softmax() sets them
    // Whether x is a row-major (outer, classes, inner) with inner above 1, for which oneDNN has no fast kernel.
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
