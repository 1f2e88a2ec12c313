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

// Elements are float32 or bf16, coefficients and sums not.

// A coefficient for each channel, those of `pitch` numbers further on for the next n. Without a step between channels
// they are all the same, as many as there are lanes; else there are padded_channels(), zero in padding.
struct PerChannel {
    const float* values;
    int64_t pitch = 0, step = 1;
    const float* of(int64_t n, int64_t channel) const { return values + n * pitch + channel * step; }
};

// What y = (x - near) scale + shift is computed by; + other weight where `other` is given.
template <typename T>
struct AffineTerms {
    PerChannel near, scale, shift;
    const T* other = nullptr;
    PerChannel weight{};
};

// y may be x or terms.other.
template <typename T>
void affine_rows(const ChannelRows& rows, const T* x, const AffineTerms<T>& terms, T* y);

// Sums are (outer, padded_channels), over the inner axis. The order of additions does not depend on the number of
// threads.

// The gradients of y = x scale + shift, each where it is wanted, in one sweep: wanted = given scale, which may be
// written over `given`, the sums of given x, and those of given.
template <typename T>
void affine_gradients(const ChannelRows& rows, const T* given, const T* x, const PerChannel& scale, T* wanted,
                      double* of_scale, double* of_shift);

// Sums of x - near and of its square.
template <typename T>
void sum_deviations(const ChannelRows& rows, const T* x, const PerChannel& near, double* sums, double* squares);

// What plain channels look like in `rows`: `copies` rows of padded_channels(), zero in padding.
template <typename T>
void pad_channels(const ChannelRows& rows, const T* values, int64_t copies, float* padded);

// Sets the lanes of padding to zero, of elements of so many bytes: oneDNN multiplies them with zeros, which does not
// help where memory that is used again has left a NaN there.
void clear_padding(const ChannelRows& rows, int64_t element_bytes, void* values);

}  // namespace engine
