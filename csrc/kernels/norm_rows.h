// The kernels of BatchNorm: statistics of channels, normalisation and its gradient, over panels of memory that a few
// channels share. A panel mostly fits the second-level cache: of two sweeps over it one comes from there.
#pragma once

#include <cstdint>

#include "kernels/bf16.h"

namespace engine {

// `rows` rows, `step` elements apart, of `lanes` elements each; those of x, which may be part of a larger blob, are
// `x_step` apart. Coefficients are one per lane. While a row is worked on, the one `lead` rows further on is fetched,
// up to the `reach`-th, which may belong to the panel that comes next: a core that asks for memory only when it needs
// it gets two thirds of what there is.
struct Panel {
    int64_t rows, step, x_step, lanes, lead, reach;
};

// y = (x - mean) scale + shift, plus `residual` where one is given; with `relu`, 0 where that is negative, and
// `ceiling` where it is more, unless that is NaN. y may be `residual`. `past_caches`: y is too large to be found there
// by its reader and is written around them; its rows then begin at whole vectors.
template <typename T>
struct Normalisation {
    const T *x, *residual;
    const float *mean, *scale, *shift;
    float ceiling;
    bool relu, past_caches;
    T* y;
};

// The gradient g that reaches the normalised value: `given`, plus `other` where there is one, and 0 where a ReLU was
// closed, or at its ceiling. That is seen from its result `y` if given, else, if scale and shift are given, from x.
template <typename T>
struct Gradient {
    const T *x, *given, *other, *y;
    const float *mean, *scale, *shift;
    float ceiling;  // NaN: there is none
    T* kept;        // g is written here, if anywhere; it may be `given`
};

template <typename T>
struct NormKernels {
    // sums[lane] += sum over the rows of x - near, squares[lane] += of (x - near)^2; near is 0 where none is given.
    void (*sum)(const Panel&, const T* x, const float* near, float* sums, float* squares);
    void (*normalise)(const Panel&, const Normalisation<T>&);
    // of_g[lane] += sum over the rows of g, of_gx[lane] += of g (x - mean).
    void (*sum_gradient)(const Panel&, const Gradient<T>&, float* of_g, float* of_gx);
    // wanted = a g + b (x - mean) + c, where neither `other` nor `y` are looked at: what was kept is given.
    void (*write_gradient)(const Panel&, const Gradient<T>&, const float* a, const float* b, const float* c,
                           bool past_caches, T* wanted);
};

// Those for this processor.
template <typename T>
const NormKernels<T>& norm_kernels();

}  // namespace engine
