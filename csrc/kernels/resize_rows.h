// Resizes rows of pixels, four bytes each, along one axis at a time: each pixel of the result is a weighted sum of
// neighbours. Weights are integers, so that results are the same on every instruction set.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace engine {

// How many bytes may be read behind the pixels of a row.
constexpr std::size_t row_slack = 32;

// The nearest pixel, and Pillow's filters, which get wider if a picture shrinks.
enum class Filter { nearest, box, linear, cubic, lanczos };

// The pixels of the source of which each pixel i of a resized picture is a sum along one axis: counts[i], from
// firsts[i] on.
struct AxisWeights {
    std::vector<int> firsts, counts;
    std::vector<int16_t> weights;  // `stride` for each pixel of the result
    int stride = 0;
    int begin = 0, end = 0;  // [begin, end): the pixels of the source that are read
    int most = 0;            // the largest count

    const int16_t* weights_of(int i) const { return weights.data() + std::ptrdiff_t(i) * stride; }
};

// Sets the weights of pixels [from, from + count) of `size`, to which [low, high) of `length` pixels is resized; in
// reverse order if mirrored. wanted: memory to work in.
void make_axis(Filter filter, double low, double high, int length, int size, int from, int count, bool mirrored,
               std::vector<double>& wanted, AxisWeights& axis);

// Returns how many rows resize_rows() takes. plain, here and below: whether to use no special instructions of this
// processor.
int rows_at_once(bool plain);

// Writes `count` pixels of each of `number` rows. rows: their pixels from axis.begin on.
void resize_rows(const uint8_t* const* rows, int number, const AxisWeights& axis, int count, uint8_t* const* outs,
                 bool plain);

// Writes a row of which each byte is a sum over `count` rows, an even number. It may write up to 31 bytes behind `out`.
void blend_rows(const uint8_t* const* rows, const int16_t* weights, int count, int bytes, uint8_t* out, bool plain);

}  // namespace engine
