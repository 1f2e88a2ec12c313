// Sigmoid and hyperbolic tangent, for loops that are compiled for each vector width (vectorised.h). Relative errors are
// below 1e-6; infinities give the limits, and NaN stays NaN.
#pragma once

#include "kernels/vectorised.h"

namespace engine {

inline __attribute__((always_inline)) float sigmoid(float x) { return 1 / (1 + expf(-x)); }

// Returns the hyperbolic tangent. The C libraries that we run on have none for vectors.
inline __attribute__((always_inline)) float squash(float x) {
    const float size = std::fabs(x), square = x * x;
    // Near 0 digits of the quotient below would cancel, so there is a polynomial, that of Moshier's Cephes library.
    const float tail = (((-5.70498872745e-3f * square + 2.06390887954e-2f) * square - 5.37397155531e-2f) * square +
                        1.33314422036e-1f) *
                           square -
                       3.33332819422e-1f;
    const float near = x + x * square * tail;
    const float bounded = size > 10 ? 10 : size;  // from 10 on the result is 1, and the exponential may overflow
    const float far = std::copysign(1 - 2 / (1 + expf(2 * bounded)), x);
    return size < 0.625f ? near : far;
}

}  // namespace engine
