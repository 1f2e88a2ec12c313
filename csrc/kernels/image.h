// Converts the pixels of one decoded image to the floats that a net reads. Decoding threads call it without the GIL: it
// starts no threads and allocates nothing.
#pragma once

#include <cstddef>
#include <cstdint>

namespace engine {

// Pixels that somebody else owns. Element (c, y, x) is data[c * channel_stride + y * row_stride + x * column_stride];
// strides count elements, so that both a decoder's HWC and a raw Datum's CHW are read where they lie.
template <typename T>
struct ImageView {
    const T* data;
    int channels, height, width;
    std::ptrdiff_t channel_stride, row_stride, column_stride;
};

// The rectangle of the image that is kept, and whether it is mirrored left to right.
struct CropWindow {
    int top, left, height, width;
    bool mirror;
};

// The mean that is subtracted: none, one value for each channel, or an image (channels, height, width), dense and of
// the source's size, of which the crop window is used.
struct Mean {
    enum class Kind { none, channel, image };
    Kind kind;
    const float* values;
};

// Sets out (channels, window.height, window.width), dense, to (pixel - mean) * scale. The window must lie inside the
// image.
void transform_image(const ImageView<std::uint8_t>& image, const CropWindow& window, const Mean& mean, float scale,
                     float* out);
void transform_image(const ImageView<float>& image, const CropWindow& window, const Mean& mean, float scale,
                     float* out);

}  // namespace engine
