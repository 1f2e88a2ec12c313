// Decodes JPEGs, row by row, by the libjpeg-turbo that comes with Pillow. Decoding threads call it without the GIL.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "kernels/picture.h"

namespace engine {

// Loads libjpeg's functions from a library, or from an extension that is linked with it, such as Pillow's. Returns "",
// or what is missing: jpeg_header() and read_jpeg() then read nothing.
std::string load_jpeg_library(const char* path);

// scans: how often the decoder passes over the picture's coefficients.
struct JpegHeader {
    int width, height, channels;
    int64_t scans;
};

// Returns how many scans a JPEG has: most have one, progressive ones usually 10, a few others one for each channel.
int64_t jpeg_scans(const uint8_t* data, std::size_t size);

// Returns the header of a JPEG of 8 bits with one channel or three and Huffman codes; nothing for other JPEGs, and for
// what is no JPEG.
std::optional<JpegHeader> jpeg_header(const uint8_t* data, std::size_t size);

// Gives the rows of a rectangle of a picture to a sink. shrink: 1, 2, 4 or 8; the picture is decoded at 1 / shrink of
// its size, rounded up, by a smaller DCT, and the rectangle is in those pixels. Returns false if the library finds that
// the file is damaged, cut off or differs from the header; it does not see damage below the rectangle.
bool read_jpeg(const uint8_t* data, std::size_t size, const JpegHeader& header, int shrink,
               const PixelRectangle& rectangle, RowSink& sink);

}  // namespace engine
