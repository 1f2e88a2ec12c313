// Rows of pixels on their way from a decoder to the net: resized, cropped, mirrored, less the mean, scaled. Called by
// decoding threads, without the GIL; a thread allocates for its first pictures only.
//
// All that is computed is whole numbers, until the mean is subtracted: the same bits on every instruction set.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/image.h"
#include "kernels/resize_rows.h"

namespace engine {

// A rectangle of pixels.
struct Part {
    int left, top, width, height;
};

// Takes rows of pixels, from top to bottom: four bytes each, blue, green, red and one that means nothing. The last
// `rows_kept` rows must be there.
constexpr int rows_kept = 4;
class RowSink {
public:
    virtual void row(const uint8_t* pixels) = 0;

protected:
    ~RowSink() = default;
};

// Which part of a source is resized to which size. The part has fractions of pixels.
struct Resizing {
    Filter filter;
    double left, top, right, bottom;
    int width, height;
};

// 2, 4 or 8 where a JPEG may be decoded at that fraction of its size, by a smaller DCT, before it is resized; else 1.
int shrink_for(const Resizing& resizing);

// Where pixels go: to floats (channels, height, width), (pixel - mean) * scale; or, where there is none of those, to
// bytes (height, width, channels).
struct Target {
    int channels;  // 1 or 3; 1: of blue, green and red the first
    float* floats;
    uint8_t* bytes;
    Mean mean;
    int mean_height, mean_width;  // of a mean of kind image: those of the resized picture
    float scale;
};

// Resizes the rows that it is given, and writes those pixels of the result that lie in a window.
class Resampler final : public RowSink {
public:
    // width, height: of the source. window: in pixels of the result. to_gray: of the source's colours the brightness.
    // plain: without the instructions of this processor, which a test compares.
    Resampler(int width, int height, const Resizing& resizing, const CropWindow& window, const Target& target,
              bool to_gray, bool plain);

    // The rows and columns of the source that are wanted.
    Part part() const;

    void row(const uint8_t* pixels) override;

private:
    void finish(int y, const uint32_t* row) const;

    int taken_ = 0, written_ = 0;             // rows of the part, rows of the window
    const uint8_t* waiting_[rows_kept] = {};  // rows that will be resized together
    CropWindow window_;
    Target target_;
    bool to_gray_, plain_;
    int at_once_;  // how many these are
    struct Scratch& scratch_;
};

// A picture in memory, to a sink: the rows of a part of an image of 1 or 3 channels.
void read_pixels(const ImageView<uint8_t>& image, const Part& part, RowSink& sink);

}  // namespace engine
