// What our own kernels for the gradient of a convolution's weights, in bfloat16, have in common.
#pragma once

#include <cstdint>

#include "kernels/bf16.h"

namespace engine {

// Sizes of two dimensions each are of rows and columns.
struct ConvolutionShape {
    int64_t images, channels, outputs;
    int64_t in[2], out[2], kernel[2], stride[2], pad[2];
    int64_t step[2];  // between pixels that the kernel sees: its dilation
};

// The gradient of the results. Where they went through a ReLU, `result` is what came out of it, and the gradient in
// front of it, which is what counts here, is left in `passed`; otherwise that is `values`, and `result` null.
struct ResultGradient {
    const bf16 *values, *result;
    bf16* passed;
};

}  // namespace engine
