// Rows of pixels, four bytes each, resized along one axis at a time: each is a sum of its neighbours, by weights that
// are whole numbers, so that the bits are the same on every instruction set.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace engine {

// What may be read behind the pixels of a row.
constexpr std::size_t row_slack = 32;

// Pillow's filters, which widen where a picture shrinks; the nearest pixel.
enum class Filter { nearest, box, linear, cubic, lanczos };

// What each pixel of a resized picture is made of along one axis: `counts[i]` pixels of the source from `firsts[i]` on.
struct AxisWeights {
    std::vector<int> firsts, counts;
    std::vector<int16_t> weights;  // `stride` for each pixel of the result
    int stride = 0;
    int begin = 0, end = 0;  // of the source's pixels that are needed
    int most = 0;            // the largest count

    const int16_t* weights_of(int i) const { return weights.data() + std::ptrdiff_t(i) * stride; }
};

// Pixels `from` to `from + count` of `size` that low..high of `length` pixels become; backwards if mirrored. wanted:
// room.
void make_axis(Filter filter, double low, double high, int length, int size, int from, int count, bool mirrored,
               std::vector<double>& wanted, AxisWeights& axis);

// How many rows resize_rows() takes. plain, here and below: without the instructions of this processor.
int rows_at_once(bool plain);

// `count` pixels of each of `number` rows, whose pixels are those from axis.begin on.
void resize_rows(const uint8_t* const* rows, int number, const AxisWeights& axis, int count, uint8_t* const* outs,
                 bool plain);

// A row of which each byte is a sum over `count` rows, an even number. Up to 31 bytes behind `out` may be written.
void blend_rows(const uint8_t* const* rows, const int16_t* weights, int count, int bytes, uint8_t* out, bool plain);

}  // namespace engine
