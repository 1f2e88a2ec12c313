// JPEGs, row by row, by the libjpeg-turbo that Pillow has brought along. Called by decoding threads, without the GIL.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "kernels/picture.h"

namespace engine {

// Takes the functions of libjpeg out of a library or an extension that is loaded, such as Pillow's. Returns "", or what
// is missing; there is nothing to read JPEGs with then.
std::string load_jpeg_library(const char* path);

// scans: how often the decoder goes over the picture's coefficients.
struct JpegHeader {
    int width, height, channels;
    int64_t scans;
};

// How many scans a JPEG has: most one, progressive ones 10 as a rule, and a few others one for each channel.
int64_t jpeg_scans(const uint8_t* data, std::size_t size);

// Of a JPEG of 8 bits with one channel or three, coded by Huffman; of others, and of what is no JPEG, nothing.
std::optional<JpegHeader> jpeg_header(const uint8_t* data, std::size_t size);

// Gives the rows of a part of a picture to a sink. shrink: 1, 2, 4 or 8; the picture is decoded at 1 / shrink of its
// size, rounded up, by the smaller DCT, and the part is in those pixels. Returns false where the library has found the
// file to be damaged, cut off or not like its header; damage below the part it does not see.
bool read_jpeg(const uint8_t* data, std::size_t size, const JpegHeader& header, int shrink, const Part& part,
               RowSink& sink);

}  // namespace engine
