// Helpers of our own kernels for the gradient of a convolution's weights, in bfloat16: each thread sums a range of the
// pixels for one side of the channels, and then a share of the ranges' sums.
#pragma once

#include <omp.h>

#include <algorithm>
#include <cstdint>

#include "kernels/bf16.h"

namespace engine {

// Arrays of two are of rows and of columns.
struct ConvolutionShape {
    int64_t images, channels, outputs;
    int64_t in[2], out[2], kernel[2], stride[2], pad[2];
    int64_t step[2];  // from a pixel that the kernel sees to the next: its dilation, 1 without holes

    int64_t pixels() const { return images * out[0] * out[1]; }  // of the results
};

// The gradient of the results, (images, rows, columns, outputs) or in blocks. After a ReLU, `values` is the gradient of
// its output `result`; kernels compute the gradient before it, and leave that in `passed`. Without a ReLU, `result` is
// null, and `values` and `passed` are the same.
struct ResultGradient {
    const bf16 *values, *result;
    bf16* passed;
};

constexpr int64_t cache_line = 64;  // bytes
inline int64_t whole_lines(int64_t bytes) { return (bytes + cache_line - 1) / cache_line * cache_line; }

// Returns how many threads share a range of the pixels. It is 1, so that each thread has a range of its own, unless
// sums would then be larger than what threads read.
inline int64_t sides_of(int64_t threads, int64_t bytes_of_sums, int64_t bytes_read, int64_t most) {
    int64_t sides = 1;
    while (sides < threads && (threads % sides || threads / sides * bytes_of_sums > bytes_read)) sides++;
    return std::min(sides, most);
}

// Calls work(thread, gradient) for each of `threads`, and when all are done collect(thread); the actual team may be
// smaller.
template <typename Work, typename Collect>
void share_out(const ConvolutionShape& shape, const ResultGradient& given, int64_t threads, int64_t sides,
               const Work& work, const Collect& collect) {
    // If several threads read the same pixels, they cannot each apply the ReLU on their way: it is applied first.
    const bool first_closed = given.result && sides > 1;
    const ResultGradient closed{given.passed, nullptr, given.passed}, &dy = first_closed ? closed : given;
#pragma omp parallel num_threads(int(threads))
    {
        const int64_t first = omp_get_thread_num(), step = omp_get_num_threads();
        if (first_closed) {
            const int64_t numbers = shape.pixels() * shape.outputs;
#pragma omp for
            for (int64_t i = 0; i < numbers; i++)  // a bfloat16 is positive if its bits as an integer are
                given.passed[i].bits = int16_t(given.result[i].bits) > 0 ? given.values[i].bits : uint16_t(0);
        }
        for (int64_t thread = first; thread < threads; thread += step) work(thread, dy);
#pragma omp barrier
        for (int64_t thread = first; thread < threads; thread += step) collect(thread);
    }
}

// Sets `bias` to the sum of the ranges' sums, of_range(range), or adds it with `add`.
template <typename OfRange>
void collect_bias(int64_t outputs, int64_t ranges, const OfRange& of_range, bool add, float* bias) {
    for (int64_t output = 0; output < outputs; output++) {
        double sum = add ? double(bias[output]) : 0;
        for (int64_t range = 0; range < ranges; range++) sum += of_range(range)[output];
        bias[output] = float(sum);
    }
}

}  // namespace engine
