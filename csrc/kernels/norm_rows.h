// The kernels of BatchNorm: statistics of channels, normalisation and its gradient, over panels of memory that hold a
// few channels. Most panels fit into the second-level cache, from which the second of two sweeps reads them.
#pragma once

#include <cstdint>

#include "kernels/bf16.h"

namespace engine {

// `rows` rows, `step` elements apart, of `lanes` elements each; those of x, which may be part of a larger blob, are
// `x_step` apart. Coefficients are one for each lane. With each row, the one `lead` rows later is prefetched, up to row
// `reach`, which may belong to the next panel: without that, a core gets two thirds of the memory's bandwidth.
struct Panel {
    int64_t rows, step, x_step, lanes, lead, reach;
};

// y = (x - mean) scale + shift, plus `residual` if it is not null; with `relu`, negative results become 0; results
// above `ceiling`, unless it is NaN, become that. y may be `residual`. past_caches: whether y bypasses the caches,
// because it is too large for its reader to find it there; its rows must then begin at whole vectors.
template <typename T>
struct Normalisation {
    const T *x, *residual;
    const float *mean, *scale, *shift;
    float ceiling;
    bool relu, past_caches;
    T* y;
};

// The gradient g of the normalised value: `given`, plus `other` if it is not null, and 0 where a ReLU was closed, or at
// its ceiling. The ReLU's result `y` tells that if it is not null; else x does, if scale and shift are not null.
template <typename T>
struct Gradient {
    const T *x, *given, *other, *y;
    const float *mean, *scale, *shift;
    float ceiling;  // NaN: none
    T* kept;        // receives g, if it is not null; it may be `given`
};

template <typename T>
struct NormKernels {
    // sums[lane] += sum over the rows of x - near, squares[lane] += sum of (x - near)^2; near: null for 0.
    void (*sum)(const Panel&, const T* x, const float* near, float* sums, float* squares);
    void (*normalise)(const Panel&, const Normalisation<T>&);
    // of_g[lane] += sum over the rows of g, of_gx[lane] += sum of g (x - mean).
    void (*sum_gradient)(const Panel&, const Gradient<T>&, float* of_g, float* of_gx);
    // wanted = a g + b (x - mean) + c. It does not read `other` and `y`: with them, `given` must be the g that was
    // kept.
    void (*write_gradient)(const Panel&, const Gradient<T>&, const float* a, const float* b, const float* c,
                           bool past_caches, T* wanted);
};

// Returns the kernels for this processor.
template <typename T>
const NormKernels<T>& norm_kernels();

}  // namespace engine
