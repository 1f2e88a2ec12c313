// Computes the gradient of a convolution's weights from bfloat16 blobs, by AVX-512's products of pairs (vdpbf16ps): for
// every pixel of the kernel it is a product of matrices, channels by pixels times pixels by outputs. Two pixels that
// follow each other are a pair. They lie apart in memory, and are brought side by side once for a run of pixels, not
// once for every block of results. The pixels of the next run are prefetched meanwhile.
#pragma once

#include <cstdint>

#include "kernels/convolution_gradient.h"

namespace engine {

// Blobs are nChw16c, the gradient is OIhw16i16o.
class PairGradient {
public:
    static bool available();
    // Returns false if blocks of 16 channels would not be full.
    static bool suits(const ConvolutionShape& shape) { return shape.channels % 16 == 0 && shape.outputs % 16 == 0; }

    // threads: those of the team that will run it.
    PairGradient(const ConvolutionShape& shape, int64_t threads);

    int64_t scratch_bytes() const;
    // bias: (outputs), or null if it is not wanted. scratch: scratch_bytes(), aligned to a cache line.
    void run(const bf16* x, const ResultGradient& dy, float* weights, float* bias, char* scratch) const;

private:
    struct Room;
    struct Worker;

    int64_t taps() const { return shape_.kernel[0] * shape_.kernel[1]; }
    int64_t floats() const { return taps() * shape_.channels * shape_.outputs; }
    int64_t images_of_run() const { return rows_ < shape_.out[0] ? 1 : rows_ / shape_.out[0]; }
    int64_t runs_of_image() const { return (shape_.out[0] + rows_ - 1) / rows_; }
    int64_t runs() const { return (shape_.images + images_of_run() - 1) / images_of_run() * runs_of_image(); }
    int64_t pairs_of_run() const { return (rows_ * shape_.out[1] + 1) / 2; }
    float* sums(char* scratch, int64_t range) const;
    char* room(char* scratch, int64_t thread) const;
    void work(int64_t thread, const bf16* x, const ResultGradient& dy, float* weights, bool wants_bias,
              char* scratch) const;
    void collect(int64_t thread, float* weights, float* bias, char* scratch) const;

    ConvolutionShape shape_;
    int64_t threads_;         // each does one range of the runs for one side of the channels
    int64_t ranges_, sides_;  // how many of these there are
    int64_t rows_;            // rows of results in a run: some of an image, or all of some images
    int64_t slab_;            // outputs whose pixels are brought side by side at a time
};

}  // namespace engine
