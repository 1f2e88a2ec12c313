#include "kernels/channel_rows.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "kernels/bf16.h"
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

constexpr int64_t most_lanes = 64;

// Calls body(lanes), with the usual number of lanes as a constant.
template <typename Body>
ENGINE_INLINE void with_lanes(int64_t lanes, const Body& body) {
    if (lanes == most_lanes) return body(std::integral_constant<int64_t, most_lanes>());
    body(lanes);
}

// Returns how many rows are done as one: more than one if they have few lanes and no gaps between them.
int64_t rows_in_one(const Panel& panel) {
    return panel.step == panel.lanes ? std::max<int64_t>(most_lanes / panel.lanes, 1) : 1;
}

// Calls work(panel, its first element) for panels of such joined rows, which together are the given panel.
template <typename Work>
void in_long_rows(const Panel& panel, const Work& work) {
    const int64_t times = rows_in_one(panel), whole = panel.rows / times, rest = panel.rows % times;
    if (whole) work(Panel{whole, panel.step * times, panel.lanes * times}, 0);
    if (rest) work(Panel{1, panel.step * rest, panel.lanes * rest}, whole * times * panel.step);
}

// The coefficients of such a joined row.
class Repeated {
public:
    Repeated(const float* of, const Panel& panel) : values_(of) {
        const int64_t times = rows_in_one(panel);
        if (times == 1 || !of) return;
        if (panel.lanes == 1)
            std::fill_n(repeated_, times, *of);
        else
            for (int64_t i = 0; i < times * panel.lanes; i++)
                repeated_[i] = i < panel.lanes ? of[i] : repeated_[i - panel.lanes];
        values_ = repeated_;
    }
    Repeated(const Repeated&) = delete;
    operator const float*() const { return values_; }

private:
    const float* values_;
    alignas(64) float repeated_[most_lanes];
};

template <typename T>
ENGINE_VECTORISED void affine_panel(const Panel& panel, const T* x, const float* near, const float* scale,
                                    const float* shift, const T* other, const float* weight, T* y) {
    with_lanes(panel.lanes, [&](auto lanes) ENGINE_BODY {
        for (int64_t row = 0; row < panel.rows; row++, x += panel.step, y += panel.step) {
            if (other) {
#pragma omp simd
                for (int64_t lane = 0; lane < lanes; lane++) {
                    const float value = (number(x[lane]) - near[lane]) * scale[lane] + shift[lane];
                    store(value + number(other[lane]) * weight[lane], y[lane]);
                }
                other += panel.step;
            } else {
#pragma omp simd
                for (int64_t lane = 0; lane < lanes; lane++)
                    store((number(x[lane]) - near[lane]) * scale[lane] + shift[lane], y[lane]);
            }
        }
    });
}

template <typename T>
ENGINE_VECTORISED void scale_panel(const Panel& panel, const T* x, const float* scale, T* y) {
    with_lanes(panel.lanes, [&](auto lanes) ENGINE_BODY {
        for (int64_t row = 0; row < panel.rows; row++, x += panel.step, y += panel.step) {
#pragma omp simd
            for (int64_t lane = 0; lane < lanes; lane++) store(number(x[lane]) * scale[lane], y[lane]);
        }
    });
}

// The terms of sums. operator() returns the term of an element, with the coefficient of its lane; from() returns the
// terms of a piece.
template <typename T>
struct Values {
    const T* a;
    Values from(int64_t at, int64_t) const { return {a + at}; }
    ENGINE_INLINE float operator()(int64_t at, int64_t) const { return number(a[at]); }
};
template <typename T>
struct Products {
    const T *a, *b;
    Products from(int64_t at, int64_t) const { return {a + at, b + at}; }
    ENGINE_INLINE float operator()(int64_t at, int64_t) const { return number(a[at]) * number(b[at]); }
};
template <typename T>
struct Deviations {
    const T* x;
    const float* near;
    Deviations from(int64_t at, int64_t lane) const { return {x + at, near + lane}; }
    ENGINE_INLINE float operator()(int64_t at, int64_t lane) const { return number(x[at]) - near[lane]; }
};
template <typename T>
struct Squares {
    Deviations<T> deviations;
    Squares from(int64_t at, int64_t lane) const { return {deviations.from(at, lane)}; }
    ENGINE_INLINE float operator()(int64_t at, int64_t lane) const {
        return deviations(at, lane) * deviations(at, lane);
    }
};

// Rows whose terms are summed in float32; these sums are summed in double.
constexpr int64_t stretch = 64;

template <typename Term>
ENGINE_VECTORISED void add_block(const Panel& panel, const Term& term, double* sums) {
    with_lanes(panel.lanes, [&](auto lanes) ENGINE_BODY {
        for (int64_t begin = 0; begin < panel.rows; begin += stretch) {
            alignas(64) float sum[most_lanes] = {};
            const int64_t end = std::min(begin + stretch, panel.rows);
            for (int64_t row = begin; row < end; row++) {
#pragma omp simd
                for (int64_t lane = 0; lane < lanes; lane++) sum[lane] += term(row * panel.step + lane, lane);
            }
            for (int64_t lane = 0; lane < lanes; lane++) sums[lane] += sum[lane];
        }
    });
}

ENGINE_VECTORISED double total(const double* of_lanes) {
    double sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t lane = 0; lane < most_lanes; lane++) sum += of_lanes[lane];
    return sum;
}

// Adds the terms of a panel to sums[lane].
template <typename Term>
void add_panel(const Panel& panel, const Term& term, double* sums) {
    in_long_rows(panel, [&](const Panel& rows, int64_t begin) {
        for (int64_t first = 0; first < rows.lanes; first += most_lanes) {
            const int64_t count = std::min(most_lanes, rows.lanes - first);
            alignas(64) double of_lanes[most_lanes] = {};
            add_block({rows.rows, rows.step, count}, term.from(begin + first, first), of_lanes);
            if (panel.lanes == 1) {
                *sums += total(of_lanes);
                continue;
            }
            for (int64_t i = 0, lane = first; i < count; i++, lane++) {
                if (lane == panel.lanes) lane = 0;
                sums[lane] += of_lanes[i];
            }
        }
    });
}

// Calls work(piece, its first element) for pieces of a panel that stay in the first-level cache from sweep to sweep.
template <typename Work>
void in_pieces(const Panel& panel, const Work& work) {
    const int64_t most = std::max<int64_t>(8192 / panel.lanes, 1);
    for (int64_t row = 0; row < panel.rows; row += most)
        work(Panel{std::min(most, panel.rows - row), panel.step, panel.lanes}, row * panel.step);
}

Panel panel_of(const ChannelRows& rows) { return {rows.inner, rows.inner_stride, rows.lanes}; }

// Calls work(n, first element, first channel, counted with padding) for each panel, in parallel.
template <typename Work>
void over_panels(const ChannelRows& rows, const Work& work) {
    const int64_t blocks = rows.blocks();
#pragma omp parallel for schedule(static) if (!rows.small())
    for (int64_t panel = 0; panel < rows.panels(); panel++) {
        const int64_t n = panel / blocks, block = panel % blocks;
        work(n, rows.offset(n, block), block * rows.lanes);
    }
}

}  // namespace

template <typename T>
void affine_rows(const ChannelRows& rows, const T* x, const AffineTerms<T>& terms, T* y) {
    const Panel panel = panel_of(rows);
    over_panels(rows, [&](int64_t n, int64_t at, int64_t channel) {
        const Repeated near(terms.near.of(n, channel), panel), scale(terms.scale.of(n, channel), panel),
            shift(terms.shift.of(n, channel), panel),
            weight(terms.other ? terms.weight.of(n, channel) : nullptr, panel);
        in_long_rows(panel, [&](const Panel& joined, int64_t begin) {
            const int64_t here = at + begin;
            affine_panel(joined, x + here, near, scale, shift, terms.other ? terms.other + here : nullptr, weight,
                         y + here);
        });
    });
}

template <typename T>
void affine_gradients(const ChannelRows& rows, const T* given, const T* x, const PerChannel& scale, T* wanted,
                      double* of_scale, double* of_shift) {
    const Panel panel = panel_of(rows);
    over_panels(rows, [&](int64_t n, int64_t at, int64_t channel) {
        const Repeated factor(scale.of(n, channel), panel);
        const int64_t into = n * rows.padded_channels() + channel;
        for (double* const sums : {of_scale, of_shift})
            if (sums) std::fill_n(sums + into, rows.lanes, 0.0);
        in_pieces(panel, [&](const Panel& piece, int64_t begin) {
            const T* const g = given + at + begin;
            if (of_scale) add_panel(piece, Products<T>{g, x + at + begin}, of_scale + into);
            if (of_shift) add_panel(piece, Values<T>{g}, of_shift + into);
            if (!wanted) return;
            in_long_rows(piece, [&](const Panel& joined, int64_t first) {
                scale_panel(joined, g + first, factor, wanted + at + begin + first);
            });
        });
    });
}

template <typename T>
void sum_deviations(const ChannelRows& rows, const T* x, const PerChannel& near, double* sums, double* squares) {
    const Panel panel = panel_of(rows);
    over_panels(rows, [&](int64_t n, int64_t at, int64_t channel) {
        const Repeated middle(near.of(n, channel), panel);
        const int64_t into = n * rows.padded_channels() + channel;
        for (double* const each : {sums, squares}) std::fill_n(each + into, rows.lanes, 0.0);
        in_pieces(panel, [&](const Panel& piece, int64_t begin) {
            const Deviations<T> deviations{x + at + begin, middle};
            add_panel(piece, deviations, sums + into);
            add_panel(piece, Squares<T>{deviations}, squares + into);
        });
    });
}

template <typename T>
void pad_channels(const ChannelRows& rows, const T* values, int64_t copies, float* padded) {
    for (int64_t n = 0; n < copies; n++, values += rows.channels, padded += rows.padded_channels()) {
        for (int64_t channel = 0; channel < rows.channels; channel++) padded[channel] = number(values[channel]);
        std::fill(padded + rows.channels, padded + rows.padded_channels(), 0.f);
    }
}

#define ENGINE_ROWS_OF(T)                                                                                            \
    template void affine_rows(const ChannelRows&, const T*, const AffineTerms<T>&, T*);                              \
    template void affine_gradients(const ChannelRows&, const T*, const T*, const PerChannel&, T*, double*, double*); \
    template void sum_deviations(const ChannelRows&, const T*, const PerChannel&, double*, double*);                 \
    template void pad_channels(const ChannelRows&, const T*, int64_t, float*);
ENGINE_ROWS_OF(float)
ENGINE_ROWS_OF(bf16)

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
