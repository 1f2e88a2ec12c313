// The weights by which the cells of a grid over a region read the pixels along one axis, for samples that are
// interpolated between pixels. A pixel's weight in a sample is the product of its row's and its column's; so is its
// weight in the average of a grid of samples.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/whole.h"

namespace engine {

// The pixels [first, first + count) along one axis that a cell reads, and their weights.
struct CellWeights {
    int64_t first, count;
    const float* of;
};

class PixelWeights {
public:
    // Begins anew: `cells` cells without samples.
    void clear(int64_t cells) {
        cells_.assign(cells, {});
        values_.clear();
    }

    // Adds a sample at a place between the first and the last pixel. Cells must come one after the other, and the
    // samples of each from low to high.
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

    // Sets the samples of Mask R-CNN (He et al. 2017, arXiv 1703.06870): each cell has `ratio`, in the middles of equal
    // pieces; if that is 0, one for each pixel of its length, rounded up. begin, end: of the region, in pixels.
    void align(float begin, float end, int64_t cells, int64_t ratio, int64_t pixels) {
        clear(cells);
        const float size = std::max(end - begin, 1.f), length = size / float(cells);
        if (!std::isfinite(begin) || !std::isfinite(size)) return;
        const float samples = ratio > 0 ? float(ratio) : std::ceil(length);
        for (int64_t i = 0; i < cells; i++) {
            const float from = begin + float(i) * length;
            // Only samples near the features are visited: a region that is far too large has too many.
            const auto number = [&](int64_t pixel) { return (float(pixel) - from) / (length / samples); };
            const int64_t first = whole(std::clamp(number(-2), 0.f, samples));
            const int64_t last = whole(std::clamp(number(pixels + 1) + 1, 0.f, samples));
            for (int64_t sample = first; sample < last; sample++) {
                const float at = from + (float(sample) + 0.5f) * length / samples;
                // Up to one pixel outside, a sample has the border's value; farther away it is 0.
                if (!(at >= -1 && at <= float(pixels))) continue;
                add(i, std::clamp(at, 0.f, float(pixels - 1)), 1 / samples, pixels);
            }
        }
    }

    CellWeights operator[](int64_t cell) const {
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
