// ChannelRows tells how memory holds channels: by it, our own kernels walk row-major, channels-last and channel-blocked
// tensors alike. A panel (n, block) is `inner` rows of `lanes` neighbouring channels; with one lane it is one
// contiguous run of `inner`.
#pragma once

#include <cstdint>

namespace engine {

struct ChannelRows {
    int64_t outer, channels, inner;  // sizes before, of and after the channel axis
    int64_t lanes;  // channels that lie side by side in memory; if C is no multiple, the last lanes are padding
    int64_t outer_stride, block_stride, inner_stride;  // in elements

    // Returns the rows of a row-major array (outer, channels, inner).
    static ChannelRows plain(int64_t outer, int64_t channels, int64_t inner);

    int64_t blocks() const { return (channels + lanes - 1) / lanes; }
    int64_t padded_channels() const { return blocks() * lanes; }
    int64_t panels() const { return outer * blocks(); }
    int64_t offset(int64_t n, int64_t block) const { return n * outer_stride + block * block_stride; }
    // Tells whether there are too few elements to wake other threads.
    bool small() const { return outer * padded_channels() * inner < 4096; }
};

// Elements are float32 or bf16 (T); coefficients are float32, sums double.

// A coefficient for each channel; those of the next n are `pitch` numbers further on. With step 1, values hold
// padded_channels(), zero in padding; with step 0 all channels have one coefficient, repeated for each lane.
struct PerChannel {
    const float* values;
    int64_t pitch = 0, step = 1;
    const float* of(int64_t n, int64_t channel) const { return values + n * pitch + channel * step; }
};

// The terms of y = (x - near) scale + shift, or with `other` + other weight.
template <typename T>
struct AffineTerms {
    PerChannel near, scale, shift;
    const T* other = nullptr;
    PerChannel weight{};
};

// Computes y, which may be x or terms.other.
template <typename T>
void affine_rows(const ChannelRows& rows, const T* x, const AffineTerms<T>& terms, T* y);

// The functions below sum over the inner axis. Sums are (outer, padded_channels); their order does not depend on the
// number of threads.

// Computes the gradients of y = x scale + shift in one sweep: wanted = given scale, which may be written over `given`,
// of_scale, the sums of given x, and of_shift, those of given. Any of the three may be null.
template <typename T>
void affine_gradients(const ChannelRows& rows, const T* given, const T* x, const PerChannel& scale, T* wanted,
                      double* of_scale, double* of_shift);

// Computes the sums of x - near and of its square.
template <typename T>
void sum_deviations(const ChannelRows& rows, const T* x, const PerChannel& near, double* sums, double* squares);

// Converts (copies, channels) to (copies, padded_channels()), zero in padding.
template <typename T>
void pad_channels(const ChannelRows& rows, const T* values, int64_t copies, float* padded);

// Sets the lanes of padding to zero. oneDNN multiplies them by zeros, which does not help if reused memory holds a NaN
// there.
void clear_padding(const ChannelRows& rows, int64_t element_bytes, void* values);

}  // namespace engine
