// LRN over neighbouring channels of a row-major (outer, channels, inner).
#pragma once

#include <cstdint>

namespace engine {

struct LrnColumns {
    int64_t outer, channels, inner, size;
    float alpha, beta, k;  // alpha: already divided by size

    // scales = k + alpha sum of x^2 over the neighbours, y = x scales^-beta.
    void values(const float* x, float* scales, float* y) const;
    // The gradient of x. `ratios` is scratch, as large as x.
    void gradients(const float* x, const float* scales, const float* given, float* ratios, float* wanted) const;

private:
    template <typename Work>
    void over_columns(const Work& work) const;
};

}  // namespace engine
