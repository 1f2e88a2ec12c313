// Helpers of AnchorTarget and ProposalTarget: boxes x1, y1, x2, y2 that include the pixels x2 and y2, as in Faster
// R-CNN, and a random choice among boxes, which depends on seed, layer, step and sample alone.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/dropout_mask.h"
#include "op.h"

namespace engine {

constexpr int64_t true_box_columns = 5;  // x1, y1, x2, y2, class; rows of class 0 or below are unused

inline double area(const float* box) { return (double(box[2]) - box[0] + 1) * (double(box[3]) - box[1] + 1); }

// Returns the intersection over union.
inline double overlap(const float* a, const float* b) {
    const double width = double(std::min(a[2], b[2])) - std::max(a[0], b[0]) + 1;
    const double height = double(std::min(a[3], b[3])) - std::max(a[1], b[1]) + 1;
    if (!(width > 0 && height > 0)) return 0;
    return width * height / (area(a) + area(b) - width * height);
}

// Sets the four offsets that move a box onto the true one: of its center, in sizes of the box, and of its size, as
// logarithms.
inline void box_offsets(const float* box, const float* truth, float* offsets) {
    for (int axis = 0; axis < 2; axis++) {
        const double size = double(box[axis + 2]) - box[axis] + 1, wanted = double(truth[axis + 2]) - truth[axis] + 1;
        offsets[axis] = float((truth[axis] + wanted / 2 - box[axis] - size / 2) / size);
        offsets[axis + 2] = float(std::log(wanted / size));
    }
}

// Keeps `count` of `numbers`, chosen at random, in their order. drawn: memory to work in.
inline void sample(std::vector<int64_t>& numbers, int64_t count, const DropoutMask& random,
                   std::vector<std::pair<uint32_t, int64_t>>& drawn) {
    if (int64_t(numbers.size()) <= count) return;
    drawn.clear();
    for (const int64_t number : numbers) drawn.emplace_back(random.bits(uint32_t(number)), number);
    std::nth_element(drawn.begin(), drawn.begin() + count, drawn.end());
    numbers.clear();
    for (int64_t i = 0; i < count; i++) numbers.push_back(drawn[i].second);
    std::sort(numbers.begin(), numbers.end());
}

}  // namespace engine
