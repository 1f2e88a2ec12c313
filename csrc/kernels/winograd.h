// Convolutions of 3 x 3 or 5 x 5 pixels by Winograd's F(4x4, 3x3) and F(4x4, 5x5) (Lavin and Gray 2015, arXiv
// 1509.09308): tiles of 4 x 4 outputs are transformed, together with the 6 x 6 or 8 x 8 inputs that they see and the
// weights, to as many points, at which a convolution is a product of matrices; of 36 multiplications where 144 are
// needed otherwise, or of 64 instead of 400. Rounding errors are about ten times those of a sum of products: against
// float64, 2 to 3e-6 of the result's norm for ResNet-50's shapes, and 2 to 4e-6 for AlexNet's 5 x 5.
#pragma once

#include <cstdint>

#include "kernels/bf16.h"

namespace engine {

constexpr int64_t winograd_tile = 4;  // outputs along an axis

// Pixels that a tile sees along an axis; the points are as many along two.
constexpr int64_t winograd_seen(int64_t kernel) { return winograd_tile + kernel - 1; }

// Images in blocks of 8 or 16 channels (nChw8c, nChw16c), of float32 or bf16; whatever they are, sums are taken in
// float32. A group of a convolution is `blocks` of them from `first_block` on.
struct BlockedImages {
    int64_t all_blocks, h, w;
    int64_t first_block, blocks;
};

// Tiles `first` to `first + count` of those that cover the outputs, image after image, row after row.
struct Tiles {
    int64_t rows, columns;  // of an image
    int64_t first, count;
};

// At each of the points a matrix with a row of channels for every tile.
struct Points {
    float* values;
    int64_t stride;  // between points
};

// The transforms, for blobs of T and kernels of one size.
template <typename T>
struct WinogradKernels {
    int64_t lanes;  // channels of a block

    // What the tiles see of x, which begins `pad` pixels outside of it.
    void (*input)(const BlockedImages& images, const T* x, int64_t pad, const Tiles& tiles, const Points& to);
    // y = activation(the tiles' outputs + bias + added); bias and added may be null.
    void (*output)(const BlockedImages& images, const Points& from, const Tiles& tiles, const float* bias,
                   const T* added, bool relu, T* y);
    // The gradient of the points from that of the outputs.
    void (*output_gradient)(const BlockedImages& images, const T* dy, const Tiles& tiles, const Points& to);
    // Weights (outputs, inputs) of one group in blocks [outputs / lanes][inputs / lanes][kernel][kernel][inputs]
    // [outputs], at the points as matrices (inputs, outputs). `turned` by half a circle, as the gradient of the input
    // sees them.
    void (*weights)(const float* weights, int64_t outputs, int64_t inputs, bool turned, const Points& to);
    // The gradient of the weights from that at the points.
    void (*weights_gradient)(const Points& from, int64_t outputs, int64_t inputs, float* gradient);
    // Sums over `count` images and all pixels.
    void (*bias_gradient)(const BlockedImages& images, int64_t count, const T* dy, float* gradient);
};

// Those for this processor and kernels of 3 or 5 pixels along both axes, or null: AVX2 has them for float32, AVX-512
// for bf16, too.
template <typename T>
const WinogradKernels<T>* winograd_kernels(int64_t kernel);

// Their lanes, for blobs of float32 or bf16; 0 where there are none.
int64_t winograd_lanes(bool of_bf16);

}  // namespace engine
