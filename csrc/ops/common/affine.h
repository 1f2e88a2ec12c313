// The base of Axpy, Bias and Scale: y = x scale + shift (+ a blob of x's shape), with coefficients for one or several
// axes of x. x and y are float32 or bf16.
#pragma once

#include "kernels/channel_rows.h"
#include "ops/common/onednn_util.h"

namespace engine {

class Affine : public Op {
public:
    void forward(const dnnl::stream& stream) override;
    void backward(const dnnl::stream& stream) override;

protected:
    // A scale or shift: a parameter or a bottom, row-major, float32 or bf16.
    struct Coefficient {
        TensorPtr tensor;
        memory padded;  // scratch: the values as the kernels read them, if there is a tensor
        memory sums;    // scratch: the gradient for each n, float64
        bool wants_gradient() const { return tensor && tensor->diff; }
    };

    // attributes: axis, the first axis of x that the coefficients cover; num_axes, how many they cover.
    explicit Affine(OpSpec spec);
    Coefficient coefficient_param(size_t i);
    Coefficient coefficient_input(size_t i);
    // Builds both passes; scale_ and shift_, of which either may be missing, must be set before. added: the number of
    // the input that is added to the result, or -1.
    void build(int added = -1);

    Coefficient scale_, shift_;

private:
    ChannelRows view() const;
    void build_backward();
    void build_added_gradient();
    template <typename T>
    void values() const;
    template <typename T>
    void gradients() const;
    PerChannel all(const std::vector<float>& values) const { return {values.data(), 0, 0}; }
    PerChannel pad(const Coefficient& coefficient, const std::vector<float>& missing) const;
    void write_gradient(const Coefficient& coefficient) const;
    template <typename T>
    void write_sums(const double* sums, const TensorPtr& diff) const;
    bool is_shift() const { return !scale_.tensor && !spec_.keep_all; }

    ChannelRows rows_;
    std::vector<float> zeros_, ones_;  // one value for each lane, which stand for all channels
    int added_ = -1;
    memory added_values_;  // in x's layout
    int64_t copies_ = 1;   // N if the coefficients cover axes 0 and 1 of a blocked x, for each n has its own
};

}  // namespace engine
