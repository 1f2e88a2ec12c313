#include "kernels/channel_rows.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "kernels/vectorised.h"

namespace engine {

ChannelRows ChannelRows::plain(int64_t outer, int64_t channels, int64_t inner) {
    if (inner == 1) return {outer, channels, 1, channels, channels, channels, channels};
    return {outer, channels, inner, 1, channels * inner, inner, 1};
}

namespace {

struct Panel {
    int64_t rows, step, lanes;
};

// The usual numbers of lanes become constants, so that a row is one vector.
template <typename Body>
ENGINE_INLINE void with_lanes(int64_t lanes, const Body& body) {
    if (lanes == 16) return body(std::integral_constant<int64_t, 16>());
    if (lanes == 8) return body(std::integral_constant<int64_t, 8>());
    body(lanes);
}

ENGINE_VECTORISED void affine_run(const float* x, float scale, float shift, float* y, int64_t length) {
#pragma omp simd
    for (int64_t i = 0; i < length; i++) y[i] = x[i] * scale + shift;
}

ENGINE_VECTORISED void affine_panel(const Panel& panel, const float* x, const float* scale, const float* shift,
                                    float* y) {
    with_lanes(panel.lanes, [&](auto lanes) ENGINE_BODY {
        for (int64_t row = 0; row < panel.rows; row++, x += panel.step, y += panel.step) {
#pragma omp simd
            for (int64_t lane = 0; lane < lanes; lane++) y[lane] = x[lane] * scale[lane] + shift[lane];
        }
    });
}

// Floats are summed in short stretches, and these in double.
constexpr int64_t stretch = 512;

ENGINE_VECTORISED double sum_run(const float* a, const float* b, int64_t length) {
    double total = 0;
    for (int64_t begin = 0; begin < length; begin += stretch) {
        const int64_t end = std::min(begin + stretch, length);
        float sum = 0;
        if (b) {
#pragma omp simd reduction(+ : sum)
            for (int64_t i = begin; i < end; i++) sum += a[i] * b[i];
        } else {
#pragma omp simd reduction(+ : sum)
            for (int64_t i = begin; i < end; i++) sum += a[i];
        }
        total += sum;
    }
    return total;
}

constexpr int64_t most_lanes = 16;  // of a block; channels-last rows are longer and are summed piece by piece
constexpr int64_t stretch_rows = 64;

ENGINE_VECTORISED void sum_block(const Panel& panel, const float* a, const float* b, double* sums) {
    with_lanes(panel.lanes, [&](auto lanes) ENGINE_BODY {
        std::fill(sums, sums + lanes, 0.0);
        for (int64_t begin = 0; begin < panel.rows; begin += stretch_rows) {
            float sum[most_lanes] = {};
            const int64_t end = std::min(begin + stretch_rows, panel.rows);
            for (int64_t row = begin; row < end; row++) {
                const float* const p = a + row * panel.step;
                const float* const q = b + row * panel.step;
                if (b) {
#pragma omp simd
                    for (int64_t lane = 0; lane < lanes; lane++) sum[lane] += p[lane] * q[lane];
                } else {
#pragma omp simd
                    for (int64_t lane = 0; lane < lanes; lane++) sum[lane] += p[lane];
                }
            }
            for (int64_t lane = 0; lane < lanes; lane++) sums[lane] += sum[lane];
        }
    });
}

void sum_panel(const Panel& panel, const float* a, const float* b, double* sums) {
    for (int64_t lane = 0; lane < panel.lanes; lane += most_lanes) {
        const Panel piece{panel.rows, panel.step, std::min(most_lanes, panel.lanes - lane)};
        sum_block(piece, a + lane, b ? b + lane : nullptr, sums + lane);
    }
}

}  // namespace

void affine_rows(const ChannelRows& rows, const float* x, const float* scale, const float* shift, bool per_outer,
                 float* y) {
    const int64_t blocks = rows.blocks();
#pragma omp parallel for schedule(static) if (!rows.small())
    for (int64_t panel = 0; panel < rows.panels(); panel++) {
        const int64_t n = panel / blocks, block = panel % blocks;
        const int64_t at = rows.offset(n, block),
                      channel = (per_outer ? n * rows.padded_channels() : 0) + block * rows.lanes;
        if (rows.lanes == 1 && rows.inner_stride == 1)
            affine_run(x + at, scale[channel], shift[channel], y + at, rows.inner);
        else
            affine_panel({rows.inner, rows.inner_stride, rows.lanes}, x + at, scale + channel, shift + channel, y + at);
    }
}

void sum_channels(const ChannelRows& rows, const float* a, const float* b, double* sums) {
    const int64_t blocks = rows.blocks();
#pragma omp parallel for schedule(static) if (!rows.small())
    for (int64_t panel = 0; panel < rows.panels(); panel++) {
        const int64_t n = panel / blocks, block = panel % blocks;
        const int64_t at = rows.offset(n, block);
        double* const into = sums + n * rows.padded_channels() + block * rows.lanes;
        const float* const other = b ? b + at : nullptr;
        if (rows.lanes == 1 && rows.inner_stride == 1)
            *into = sum_run(a + at, other, rows.inner);
        else
            sum_panel({rows.inner, rows.inner_stride, rows.lanes}, a + at, other, into);
    }
}

void pad_channels(const ChannelRows& rows, const float* values, float missing, int64_t copies, float* padded) {
    for (int64_t n = 0; n < copies; n++, padded += rows.padded_channels()) {
        if (values)
            std::copy_n(values + n * rows.channels, rows.channels, padded);
        else
            std::fill_n(padded, rows.channels, missing);
        std::fill(padded + rows.channels, padded + rows.padded_channels(), 0.f);
    }
}

void clear_padding(const ChannelRows& rows, int64_t element_bytes, void* values) {
    const int64_t used = rows.channels % rows.lanes;
    if (used == 0) return;
    const size_t bytes = size_t((rows.lanes - used) * element_bytes);
#pragma omp parallel for schedule(static) if (!rows.small())
    for (int64_t n = 0; n < rows.outer; n++) {
        const int64_t begin = rows.offset(n, rows.blocks() - 1) + used;
        for (int64_t i = 0; i < rows.inner; i++)
            std::memset(static_cast<char*>(values) + (begin + i * rows.inner_stride) * element_bytes, 0, bytes);
    }
}

}  // namespace engine
