// What the cells of a grid over a region take of the pixels along one axis, by samples that are interpolated between
// pixels. A sample is a product of its row's and its column's share, and so is the average of a grid of samples.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/whole.h"

namespace engine {

// The pixels along one axis that a cell takes, and how much of each.
struct Share {
    int64_t first, count;
    const float* of;
};

class Shares {
public:
    // Cells without samples.
    void clear(int64_t cells) {
        cells_.assign(cells, {});
        values_.clear();
    }

    // A sample between the first and the last pixel; one cell after the other, and each one's from low to high.
    void add(int64_t cell, float at, float weight, int64_t pixels) {
        Cell& to = cells_[cell];
        const int64_t low = whole(at), high = std::min(low + 1, pixels - 1);
        if (to.count == 0) {
            to.first = low;
            to.offset = int64_t(values_.size());
        }
        for (; to.first + to.count <= high; to.count++) values_.push_back(0);
        float* const of = values_.data() + to.offset - to.first;
        of[low] += weight * (1 - (at - float(low)));
        of[high] += weight * (at - float(low));
    }

    // Those of Mask R-CNN (He et al. 2017, arXiv 1703.06870): `ratio` in the middles of equal pieces of each cell, or
    // one for each pixel that it is long, rounded up. begin, end: of the region, in pixels.
    void align(float begin, float end, int64_t cells, int64_t ratio, int64_t pixels) {
        clear(cells);
        const float size = std::max(end - begin, 1.f), length = size / float(cells);
        if (!std::isfinite(begin) || !std::isfinite(size)) return;
        const float samples = ratio > 0 ? float(ratio) : std::ceil(length);
        for (int64_t i = 0; i < cells; i++) {
            const float from = begin + float(i) * length;
            // Only samples near the features are looked at: a region that is far too large has too many.
            const auto number = [&](int64_t pixel) { return (float(pixel) - from) / (length / samples); };
            const int64_t first = whole(std::clamp(number(-2), 0.f, samples));
            const int64_t last = whole(std::clamp(number(pixels + 1) + 1, 0.f, samples));
            for (int64_t sample = first; sample < last; sample++) {
                const float at = from + (float(sample) + 0.5f) * length / samples;
                // Up to one pixel outside a sample has the value of the border, beyond that none.
                if (!(at >= -1 && at <= float(pixels))) continue;
                add(i, std::clamp(at, 0.f, float(pixels - 1)), 1 / samples, pixels);
            }
        }
    }

    Share operator[](int64_t cell) const {
        const Cell& found = cells_[cell];
        return {found.first, found.count, values_.data() + found.offset};
    }

private:
    struct Cell {
        int64_t first, count, offset;
    };

    std::vector<Cell> cells_;
    std::vector<float> values_;
};

}  // namespace engine
