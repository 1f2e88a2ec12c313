// Computes LRN of (outer, channels, height, width), over neighbouring channels or squares in a channel.
#pragma once

#include <cstdint>

#include "kernels/channel_rows.h"

namespace engine {

struct LrnKernels {
    int64_t outer, channels, height, width, size;
    bool across_channels;
    float alpha, beta, k;  // alpha: already divided by the number of neighbours

    // Computes, of row-major arrays, scales = k + alpha sum of x^2 over the neighbours, y = x scales^-beta.
    void values(const float* x, float* scales, float* y) const;
    // Computes the gradient of x. ratios: scratch, as large as x.
    void gradients(const float* x, const float* scales, const float* given, float* ratios, float* wanted) const;

    // Do the same across channels that lie side by side, float32 or bf16. y may be x, and `wanted` may be `given`.
    // scratch: scratch_size() numbers for each thread of the team.
    template <typename T>
    void values_in_lanes(const ChannelRows& rows, const T* x, T* y, float* scratch, int team) const;
    template <typename T>
    void gradients_in_lanes(const ChannelRows& rows, const T* x, const T* given, T* wanted, float* scratch,
                            int team) const;
    int64_t scratch_size(const ChannelRows& rows) const;

private:
    template <typename Work>
    void in_tiles(const Work& work) const;
};

}  // namespace engine
