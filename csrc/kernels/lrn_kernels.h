// LRN of a row-major (outer, channels, height, width), over neighbouring channels or squares of a channel.
#pragma once

#include <cstdint>

namespace engine {

struct LrnKernels {
    int64_t outer, channels, height, width, size;
    bool across_channels;
    float alpha, beta, k;  // alpha: already divided by the number of neighbours

    // scales = k + alpha sum of x^2 over the neighbours, y = x scales^-beta.
    void values(const float* x, float* scales, float* y) const;
    // The gradient of x. `ratios` is scratch, as large as x.
    void gradients(const float* x, const float* scales, const float* given, float* ratios, float* wanted) const;

private:
    template <typename Work>
    void in_parts(const Work& work) const;
};

}  // namespace engine
