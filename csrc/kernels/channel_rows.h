// How memory holds channels: the view that kernels of our own take of row-major, channels-last and channel-blocked
// tensors alike. A panel (n, block) is `inner` rows of `lanes` neighbouring channels; with one lane it is one
// contiguous run of `inner`.
#pragma once

#include <cstdint>

namespace engine {

struct ChannelRows {
    int64_t outer, channels, inner;  // sizes before, of and after the channel axis
    int64_t lanes;  // channels that lie side by side in memory; where C is no multiple, the last are padding
    int64_t outer_stride, block_stride, inner_stride;  // in elements

    // Of a row-major array (outer, channels, inner).
    static ChannelRows plain(int64_t outer, int64_t channels, int64_t inner);

    int64_t blocks() const { return (channels + lanes - 1) / lanes; }
    int64_t padded_channels() const { return blocks() * lanes; }
    int64_t panels() const { return outer * blocks(); }
    int64_t offset(int64_t n, int64_t block) const { return n * outer_stride + block * block_stride; }
    // Too few elements to wake other threads for.
    bool small() const { return outer * padded_channels() * inner < 4096; }
};

// y = x scale + shift. scale and shift hold padded_channels() numbers, which are zero in padding, or that many for each
// n with `per_outer`. y may be x.
void affine_rows(const ChannelRows& rows, const float* x, const float* scale, const float* shift, bool per_outer,
                 float* y);

// sums (outer, padded_channels): of a[i] over the inner axis, or of a[i] b[i] where b is given. The order of additions
// does not depend on the number of threads.
void sum_channels(const ChannelRows& rows, const float* a, const float* b, double* sums);

// What plain channels look like in `rows`: `copies` rows of padded_channels(), `missing` without values, zero in
// padding.
void pad_channels(const ChannelRows& rows, const float* values, float missing, int64_t copies, float* padded);

// Sets the lanes of padding to zero, of elements of so many bytes: oneDNN multiplies them with zeros, which does not
// help where memory that is used again has left a NaN there.
void clear_padding(const ChannelRows& rows, int64_t element_bytes, void* values);

}  // namespace engine
