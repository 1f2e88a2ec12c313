// The functions of gates, for loops that are compiled for each vector width (vectorised.h). Relative errors stay below
// 1e-6; infinities become the limits, and NaN stays NaN.
#pragma once

#include "kernels/vectorised.h"

namespace engine {

inline __attribute__((always_inline)) float sigmoid(float x) { return 1 / (1 + expf(-x)); }

// The hyperbolic tangent, of which the C libraries that we run on have none for vectors.
inline __attribute__((always_inline)) float squash(float x) {
    const float size = std::fabs(x), square = x * x;
    // Near 0 the quotient would cancel: the polynomial is that of Moshier's Cephes library.
    const float tail = (((-5.70498872745e-3f * square + 2.06390887954e-2f) * square - 5.37397155531e-2f) * square +
                        1.33314422036e-1f) *
                           square -
                       3.33332819422e-1f;
    const float near = x + x * square * tail;
    const float bounded = size > 10 ? 10 : size;  // it is 1 there, and the exponential of more may be infinite
    const float far = std::copysign(1 - 2 / (1 + expf(2 * bounded)), x);
    return size < 0.625f ? near : far;
}

}  // namespace engine
