// Boxes of detection layers: their corners, in widths and heights of the image, their overlap, and their code relative
// to a prior box (Liu et al. 2016, arXiv 1512.02325).
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

// Returns the area of the intersection over that of the union.
float overlap(const Box& a, const Box& b);

// Encodes a box as four numbers relative to its prior. code: CORNER, CENTER_SIZE or CORNER_SIZE; variance_in_target:
// whether the numbers are not divided by the prior's variances.
class BoxCode {
public:
    using Numbers = std::array<float, 4>;

    BoxCode(const std::string& code, bool variance_in_target);
    Numbers encode(const Box& prior, const float* variances, const Box& box) const;
    Box decode(const Box& prior, const float* variances, const float* numbers) const;

private:
    // Returns the unit of each number: its variance, times the prior's size if the code is relative to that.
    Numbers units(const Box& prior, const float* variances) const;

    bool centered_, sized_, variance_in_target_;
};

// A true box. Rows of a ground-truth blob are (image, label, instance, x1, y1, x2, y2, difficult).
struct Truth {
    Box box;
    int64_t label;
    bool difficult;
};

constexpr int64_t truth_columns = 8;
using Truths = std::map<int64_t, std::vector<Truth>>;  // by image

constexpr int64_t any_class = INT64_MAX;  // as `classes`: any number of them

// Reads the rows of a ground-truth blob; those with a negative image are padding. Throws std::runtime_error, which
// names the layer, for a label that is the background or outside [0, classes).
Truths read_truths(const std::string& layer, const float* values, int64_t rows, int64_t classes, int64_t background);

// Does the same for (images, 1, rows, 5): label, x and y of the center, width, height. Labels are in [0, classes), and
// begin at 1 in what is returned; a row with a width or height not above 0 is padding.
Truths read_centered_truths(const std::string& layer, const float* values, int64_t images, int64_t rows,
                            int64_t classes);

// Returns the indices of the boxes that are kept when, from the best score down, each kept box removes those that
// overlap it by more than `threshold`. Only scores above `least` count, and of these only the best `top_k` (-1: all).
// `eta` below 1 multiplies a threshold above 0.5 after each kept box. The search ends when `most` are kept (-1: never
// before the end).
std::vector<int64_t> suppress(const std::vector<Box>& boxes, const std::vector<float>& scores, float least,
                              int64_t top_k, float threshold, float eta, int64_t most = -1);

}  // namespace engine
