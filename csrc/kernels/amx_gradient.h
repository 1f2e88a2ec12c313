// Computes the gradient of a convolution's weights from bfloat16 blobs, by AMX: for every pixel of the kernel it is a
// product of matrices, outputs by pixels times pixels by channels. oneDNN's kernels spend most of their time on
// bringing pixels, which lie far apart in memory, side by side, once for every block of results; this does it once for
// a run of pixels.
#pragma once

#include <cstdint>

#include "kernels/convolution_gradient.h"

namespace engine {

// Images are channels-last.
class AmxGradient {
public:
    // Tells whether this processor and system have AMX.
    static bool available();
    // Returns false if too little of the tiles, of 32 channels and 32 outputs, would be used: if the kernel has several
    // pixels, oneDNN is then faster (from 16 to 16 channels 4.7 times, from 16 to 32 nearly twice).
    static bool suits(const ConvolutionShape& shape) {
        const int64_t channels = shape.channels * columns_together(shape);
        if (channels < 8 || shape.outputs < 16) return false;
        const auto used = [](int64_t count) { return double(count) / double((count + 31) / 32 * 32); };
        const bool one_pixel = shape.kernel[0] * shape.kernel[1] == 1;
        return one_pixel || used(channels) * used(shape.outputs) > 0.5;
    }

    // threads: those of the team that will run it.
    AmxGradient(const ConvolutionShape& shape, int64_t threads);

    int64_t scratch_bytes() const;
    struct Gradient {
        float* values;
        bool add;  // whether it is added to what is there
    };
    // x: (images, rows, columns, channels). weights: (outputs, kernel rows, kernel columns, channels). bias: (outputs),
    // or null if it is not wanted. scratch: scratch_bytes(), aligned to a cache line.
    void run(const bf16* x, const ResultGradient& dy, const Gradient& weights, const Gradient& bias,
             char* scratch) const;

private:
    struct Room;
    struct Worker;

    // Returns how many neighbouring columns of the kernel count as one, with so many times the channels: more than one
    // if channels are few, because their pixels lie side by side.
    static int64_t columns_together(const ConvolutionShape& shape) {
        return shape.channels < 16 && shape.step[1] == 1 ? shape.kernel[1] : 1;
    }

    int64_t taps() const { return shape_.kernel[0] * shape_.kernel[1] / together_; }
    int64_t row_at_edge() const { return shape_.channels * together_; }
    int64_t block_floats() const;
    float* sums(char* scratch, int64_t range) const;
    char* room(char* scratch, int64_t thread) const;
    void work(int64_t thread, const bf16* x, const ResultGradient& dy, bool wants_bias, char* scratch) const;
    void collect(int64_t thread, const Gradient& weights, const Gradient& bias, char* scratch) const;

    ConvolutionShape shape_;
    int64_t together_;        // columns_together()
    bool swapped_;            // whether the left matrix, which costs more to prepare, is x and not dy
    int64_t left_, right_;    // channels of the matrices
    int64_t threads_;         // each does one range of the pixels for one side of the right matrix's channels
    int64_t ranges_, sides_;  // how many of these there are
    int64_t run_;             // pixels that are prepared at a time
};

}  // namespace engine
