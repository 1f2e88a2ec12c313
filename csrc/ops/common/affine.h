// y = x scale + shift, with coefficients for one or several axes of x: what Scale and Bias have in common.
#pragma once

#include "kernels/channel_rows.h"
#include "ops/common/onednn_util.h"

namespace engine {

class Affine : public Op {
public:
    void forward(const dnnl::stream& stream) override;
    void backward(const dnnl::stream& stream) override;

protected:
    // A scale or shift: a parameter or a bottom, row-major.
    struct Coefficient {
        TensorPtr tensor;
        memory padded;  // scratch: the values as the kernels want them
        memory sums;    // scratch: the gradient for each n, in double
        bool wants_gradient() const { return tensor && tensor->diff; }
    };

    // attributes: axis, the first that the coefficients cover, and num_axes, how many.
    explicit Affine(OpSpec spec);
    Coefficient coefficient_param(size_t i);
    Coefficient coefficient_input(size_t i);
    // Once the coefficients are set (either may be missing).
    void build();

    Coefficient scale_, shift_;

private:
    ChannelRows view() const;
    void build_backward();
    const float* pad(const memory& into, const TensorPtr& values, float missing) const;
    void write_gradient(const Coefficient& coefficient) const;

    ChannelRows rows_;
    int64_t copies_ = 1;  // of the coefficients along n, where they cover axes 0 and 1 of a blocked x
};

}  // namespace engine
