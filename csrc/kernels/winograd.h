// The transforms of convolutions of 3 x 3 or 5 x 5 pixels by Winograd's F(4x4, 3x3) and F(4x4, 5x5) (Lavin and Gray
// 2015, arXiv 1509.09308). Outputs are done in tiles of 4 x 4. A tile sees 6 x 6 or 8 x 8 inputs; these and the weights
// are transformed to as many points, at each of which the convolution is a product of matrices. That takes 36
// multiplications in place of 144, or 64 in place of 400. Rounding errors are about ten times those of a sum of
// products: against float64, 2 to 3e-6 of the result's norm for ResNet-50's shapes, and 2 to 4e-6 for AlexNet's 5 x 5.
#pragma once

#include <cstdint>

#include "kernels/bf16.h"

namespace engine {

constexpr int64_t winograd_tile = 4;  // outputs along an axis

// Returns the pixels that a tile sees along an axis; there are as many points along each axis.
constexpr int64_t winograd_seen(int64_t kernel) { return winograd_tile + kernel - 1; }

// Images in blocks of 8 or 16 channels (nChw8c, nChw16c), float32 or bf16; sums are float32 for both. A group of a
// convolution is `blocks` of the blocks, from `first_block` on.
struct BlockedImages {
    int64_t all_blocks, h, w;
    int64_t first_block, blocks;
};

// Tiles [first, first + count) of those that cover the outputs, image after image, row after row.
struct Tiles {
    int64_t rows, columns;  // of an image
    int64_t first, count;
};

// A matrix at each of the points: of tiles, (tiles, channels), or of weights, (inputs, outputs).
struct Points {
    float* values;
    int64_t stride;  // between points
};

// The transforms, for blobs of T and kernels of one size.
template <typename T>
struct WinogradKernels {
    int64_t lanes;  // channels of a block

    // Transforms what the tiles see of x, which begins `pad` pixels outside of it.
    void (*input)(const BlockedImages& images, const T* x, int64_t pad, const Tiles& tiles, const Points& to);
    // y = the tiles' outputs + bias + added, with `relu` 0 where that is negative; bias and added may be null.
    void (*output)(const BlockedImages& images, const Points& from, const Tiles& tiles, const float* bias,
                   const T* added, bool relu, T* y);
    // Computes the gradient at the points from that of the outputs.
    void (*output_gradient)(const BlockedImages& images, const T* dy, const Tiles& tiles, const Points& to);
    // Transforms the weights of one group, in blocks [outputs / lanes][inputs /
    // lanes][kernel][kernel][inputs][outputs]. turned: whether kernels are turned by half a circle, as the gradient of
    // the input needs them.
    void (*weights)(const float* weights, int64_t outputs, int64_t inputs, bool turned, const Points& to);
    // Computes the gradient of the weights from that at the points.
    void (*weights_gradient)(const Points& from, int64_t outputs, int64_t inputs, float* gradient);
    // Sets the gradient of the bias to the sums over `count` images and all pixels.
    void (*bias_gradient)(const BlockedImages& images, int64_t count, const T* dy, float* gradient);
};

// Returns the transforms for this processor and kernels of 3 or 5 pixels along both axes; null if there are none. With
// AVX2 there are those for float32, with AVX-512 also those for bf16.
template <typename T>
const WinogradKernels<T>* winograd_kernels(int64_t kernel);

// Returns their lanes, for float32 or bf16 blobs; 0 if there are none.
int64_t winograd_lanes(bool of_bf16);

}  // namespace engine
