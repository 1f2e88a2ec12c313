// The slope that oneDNN is given for a ReLU without one, so that NaN stays NaN, as in Caffe.
#pragma once

#include <limits>

namespace engine {

// oneDNN's kernels for the slope 0 take the maximum of x and 0, which x86 says is 0 where x is NaN. For any other slope
// they multiply x by it where x is not positive. This one counts as 0 in every thread that computes (threads.h): the
// product is 0 for numbers below 0, and NaN for NaN.
inline float relu_slope(float slope) {
#if defined(__x86_64__)
    return slope == 0 ? -std::numeric_limits<float>::denorm_min() : slope;
#else
    return slope;
#endif
}

}  // namespace engine
