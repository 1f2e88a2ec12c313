// Reads the predictions of YOLO's second version (Redmon and Farhadi 2017, arXiv 1612.08242): for every pixel of a
// plane a box for each anchor, with offsets x, y, w, h, a score for an object, and a score for each class.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "kernels/boxes.h"
#include "kernels/squash.h"

namespace engine {

class AnchorGrid {
public:
    static constexpr int64_t object = 4, first_class = 5;  // places among the numbers of a box

    // For predictions (N, anchors * (5 + classes), height, width). sizes: width and height of each anchor, in pixels of
    // the plane.
    AnchorGrid(int64_t classes_, int64_t height_, int64_t width_, std::vector<double> sizes)
        : classes(classes_),
          anchors(int64_t(sizes.size()) / 2),
          height(height_),
          width(width_),
          sizes_(std::move(sizes)) {}

    int64_t boxes() const { return anchors * height * width; }
    // Returns the index of number k of a box; boxes are counted anchor by anchor, row by row.
    int64_t at(int64_t n, int64_t box, int64_t k) const {
        const int64_t plane = height * width, numbers = first_class + classes;
        return ((n * anchors + box / plane) * numbers + k) * plane + box % plane;
    }
    int64_t box_of(int64_t anchor, int64_t row, int64_t column) const {
        return (anchor * height + row) * width + column;
    }

    // Returns a predicted box of image n, in sizes of the image.
    Box decode(const float* predictions, int64_t n, int64_t box) const {
        const int64_t column = box % width, row = box / width % height;
        const Size anchor = size(box / (height * width));
        return centered((float(column) + sigmoid(predictions[at(n, box, 0)])) / float(width),
                        (float(row) + sigmoid(predictions[at(n, box, 1)])) / float(height),
                        std::exp(predictions[at(n, box, 2)]) * anchor.width,
                        std::exp(predictions[at(n, box, 3)]) * anchor.height);
    }

    struct Size {
        float width, height;
    };
    // Returns the size of an anchor, in sizes of the image.
    Size size(int64_t anchor) const {
        return {float(sizes_[2 * anchor]) / float(width), float(sizes_[2 * anchor + 1]) / float(height)};
    }

    static Box centered(float x, float y, float width, float height) {
        return {x - width / 2, y - height / 2, x + width / 2, y + height / 2};
    }

    // Returns the class with the greatest score, the first if several have it; NaN does not count.
    int64_t best_class(const float* predictions, int64_t n, int64_t box) const {
        int64_t best = 0;
        float most = -std::numeric_limits<float>::infinity();
        for (int64_t c = 0; c < classes; c++) {
            const float score = predictions[at(n, box, first_class + c)];
            if (!(score > most)) continue;
            most = score;
            best = c;
        }
        return best;
    }

    // Sets `into` to the softmax of a box's class scores.
    void probabilities(const float* predictions, int64_t n, int64_t box, float* into) const {
        for (int64_t c = 0; c < classes; c++) into[c] = predictions[at(n, box, first_class + c)];
        const float largest = *std::max_element(into, into + classes);
        double sum = 0;
        for (int64_t c = 0; c < classes; c++) sum += into[c] = std::exp(into[c] - largest);
        for (int64_t c = 0; c < classes; c++) into[c] = float(into[c] / sum);
    }

    int64_t classes, anchors, height, width;

private:
    std::vector<double> sizes_;
};

}  // namespace engine
