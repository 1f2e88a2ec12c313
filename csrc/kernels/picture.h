// Brings rows of pixels from a decoder to the net: resizes, crops and mirrors them, subtracts the mean and scales them.
// Decoding threads call it without the GIL; a thread allocates only for its first pictures.
//
// All arithmetic before the mean is subtracted is on integers, so that results are the same on every instruction set.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/image.h"
#include "kernels/resize_rows.h"

namespace engine {

// A rectangle of pixels.
struct PixelRectangle {
    int left, top, width, height;
};

// Takes rows of pixels, from top to bottom. A pixel is four bytes: blue, green, red and one without meaning. The caller
// must keep the last `rows_kept` rows.
constexpr int rows_kept = 4;
class RowSink {
public:
    virtual void row(const uint8_t* pixels) = 0;

protected:
    ~RowSink() = default;
};

// The rectangle of a source that is resized, in pixels and fractions of them, and the size of the result.
struct Resizing {
    Filter filter;
    double left, top, right, bottom;
    int width, height;
};

// Returns 2, 4 or 8 if a JPEG may be decoded at 1/2, 1/4 or 1/8 of its size, by a smaller DCT, before it is resized;
// else 1.
int shrink_for(const Resizing& resizing);

// Where pixels go: to floats (channels, height, width), as (pixel - mean) * scale; or, if `floats` is null, to bytes
// (height, width, channels).
struct Target {
    int channels;  // 3, or 1: the first of blue, green and red
    float* floats;
    uint8_t* bytes;
    Mean mean;
    int mean_height, mean_width;  // of a mean of kind image, which has the size of the resized picture
    float scale;
};

// Resizes the rows that it takes, and writes the pixels of the result that lie in a window.
class Resampler final : public RowSink {
public:
    // width, height: of the source. window: in pixels of the result. to_gray: whether the source's colours become their
    // brightness. plain: whether to use no special instructions of this processor; a test compares the two.
    Resampler(int width, int height, const Resizing& resizing, const CropWindow& window, const Target& target,
              bool to_gray, bool plain);

    // Returns the rectangle of the source whose rows it needs.
    PixelRectangle needed() const;

    void row(const uint8_t* pixels) override;

private:
    void finish(int y, const uint32_t* row) const;

    int taken_ = 0, written_ = 0;             // rows of needed(), rows of the window
    const uint8_t* waiting_[rows_kept] = {};  // rows that will be resized together
    CropWindow window_;
    Target target_;
    bool to_gray_, plain_;
    int at_once_;  // how many rows are resized together
    struct Scratch& scratch_;
};

// Gives the rows of a rectangle of an image in memory, of 1 or 3 channels, to a sink.
void read_pixels(const ImageView<uint8_t>& image, const PixelRectangle& rectangle, RowSink& sink);

}  // namespace engine
