// Boxes of detection layers: corners as shares of the image's width and height, how they overlap, and how a box is
// written relative to a prior one (Liu et al. 2016, arXiv 1512.02325).
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace engine {

struct Box {
    float x1, y1, x2, y2;

    static Box at(const float* values) { return {values[0], values[1], values[2], values[3]}; }
    float width() const { return x2 - x1; }
    float height() const { return y2 - y1; }
    float area() const { return x2 < x1 || y2 < y1 ? 0 : width() * height(); }
    bool within_image() const {
        return x1 >= 0 && x1 <= 1 && y1 >= 0 && y1 <= 1 && x2 >= 0 && x2 <= 1 && y2 >= 0 && y2 <= 1;
    }
};

// Area of the intersection over that of the union.
float overlap(const Box& a, const Box& b);

// Four numbers stand for a box beside its prior. code: CORNER, CENTER_SIZE or CORNER_SIZE; variance_in_target: the
// numbers are not divided by the prior's variances.
class BoxCode {
public:
    using Numbers = std::array<float, 4>;

    BoxCode(const std::string& code, bool variance_in_target);
    Numbers encode(const Box& prior, const float* variances, const Box& box) const;
    Box decode(const Box& prior, const float* variances, const float* numbers) const;

private:
    // What each number counts in: the prior's size where the code says so, times its variance.
    Numbers units(const Box& prior, const float* variances) const;

    bool centered_, sized_, variance_in_target_;
};

// What is really in the images. Rows of a ground-truth blob: (image, label, instance, x1, y1, x2, y2, difficult).
struct Truth {
    Box box;
    int64_t label;
    bool difficult;
};

constexpr int64_t truth_columns = 8;
using Truths = std::map<int64_t, std::vector<Truth>>;  // by image

constexpr int64_t any_class = INT64_MAX;  // for `classes`: however many there are

// Rows whose image is negative are padding. Throws, naming the layer, where a label is the background's or outside [0,
// classes).
Truths read_truths(const std::string& layer, const float* values, int64_t rows, int64_t classes, int64_t background);

// The same of (images, 1, rows, 5): label in [0, classes), which becomes one from 1, x and y of the center, width,
// height; a row whose width or height is not above 0 is padding.
Truths read_centered_truths(const std::string& layer, const float* values, int64_t images, int64_t rows,
                            int64_t classes);

// Indices of the boxes that stay when, from the best score down, each takes out those that overlap it by more than
// `threshold`. Only scores above `least` count, and of these only the best `top_k` (-1: all). `eta` below 1 lowers a
// threshold above 0.5 after each box that stays. The search ends when `most` stay (-1: at the end).
std::vector<int64_t> suppress(const std::vector<Box>& boxes, const std::vector<float>& scores, float least,
                              int64_t top_k, float threshold, float eta, int64_t most = -1);

}  // namespace engine
