// Chooses the slope that oneDNN gets for a ReLU with slope 0, so that NaN stays NaN, as in Caffe.
#pragma once

#include <limits>

namespace engine {

// oneDNN's kernels for slope 0 take the maximum of x and 0, which on x86 is 0 for NaN. With any other slope they
// multiply x by it where x is not positive. A denormal counts as 0 in every thread that computes (threads.h): as a
// slope it makes 0 of negative numbers, and NaN of NaN.
inline float relu_slope(float slope) {
#if defined(__x86_64__)
    return slope == 0 ? -std::numeric_limits<float>::denorm_min() : slope;
#else
    return slope;
#endif
}

}  // namespace engine
