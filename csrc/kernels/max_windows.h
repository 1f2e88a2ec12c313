// Computes the maximum over windows of planes or volumes, and its gradient, for AVX2: oneDNN's kernels for it take
// several times as long for gradients, and for volumes.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/channel_rows.h"

namespace engine {

struct MaxWindows {
    struct Axis {
        int64_t size = 1, pooled = 1, kernel = 1, stride = 1, pad = 0;
        // For window i: start() is where it begins; [begin(), end()), counted from there, lies within the plane;
        // holds() tells whether all of it does.
        int64_t start(int64_t i) const { return i * stride - pad; }
        int64_t begin(int64_t i) const { return std::max<int64_t>(0, -start(i)); }
        int64_t end(int64_t i) const { return std::min(kernel, size - start(i)); }
        bool holds(int64_t i) const { return begin(i) == 0 && end(i) == kernel; }
        // Tells whether the last window begins beyond the plane, which Caffe's pooling without padding allows.
        bool has_empty() const { return end(pooled - 1) <= 0; }
    };
    static constexpr int64_t most_places = 255;  // the most pixels of a window, whose places are kept as bytes

    Axis outer, middle, inner;

    // Returns the pixel of the plane at which a window begins, which may be beyond its edge.
    int64_t start(int64_t i, int64_t j, int64_t k) const {
        return (outer.start(i) * middle.size + middle.start(j)) * inner.size + inner.start(k);
    }
    // Tells whether a window has no more than most_places pixels. It divides, because a product might overflow.
    bool fits() const {
        int64_t most = most_places;
        for (const Axis* axis : {&outer, &middle, &inner}) most /= axis->kernel;
        return most > 0;
    }
    bool has_empty() const { return outer.has_empty() || middle.has_empty() || inner.has_empty(); }

    // Computes y and `which`, the place of each maximum in its window, the first of equals; NaN is passed over. `which`
    // is as large as y, or null if there are no gradients.
    void values(const ChannelRows& x_rows, const float* x, const ChannelRows& y_rows, float* y, uint8_t* which) const;
    // Computes the gradient of x.
    void gradients(const ChannelRows& x_rows, const ChannelRows& y_rows, const float* given, const uint8_t* which,
                   float* wanted) const;
};

}  // namespace engine
