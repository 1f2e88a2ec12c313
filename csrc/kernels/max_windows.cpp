#include "kernels/max_windows.h"

#include <algorithm>
#include <cfloat>
#include <cstring>

#include "kernels/vectorised.h"

namespace engine {

namespace {

typedef float Eight __attribute__((vector_size(32)));
typedef int32_t Places __attribute__((vector_size(32)));
typedef uint8_t Bytes __attribute__((vector_size(32)));

constexpr int64_t eight = 8;
constexpr uint8_t nowhere = MaxWindows::most_places;  // the place of a window without a number

// The pixels within one window: their places in it, and their distances from its beginning, in elements.
struct Reach {
    int64_t count = 0;
    int64_t distances[MaxWindows::most_places];
    int32_t places[MaxWindows::most_places];
};

// begin, end: along each axis, counted from the window's beginning.
Reach reach_of(const MaxWindows& windows, const int64_t (&begin)[3], const int64_t (&end)[3], int64_t step) {
    Reach reach;
    for (int64_t i = begin[0]; i < end[0]; i++)
        for (int64_t j = begin[1]; j < end[1]; j++)
            for (int64_t k = begin[2]; k < end[2]; k++, reach.count++) {
                reach.places[reach.count] = int32_t((i * windows.middle.kernel + j) * windows.inner.kernel + k);
                reach.distances[reach.count] = ((i * windows.middle.size + j) * windows.inner.size + k) * step;
            }
    return reach;
}

// Windows side by side, each of which begins `stride` elements after the one before. x: lane 0 of the first one's
// beginning; step: from a window's result to the next one's.
struct Run {
    int64_t windows, stride, lanes, step;
    const float* x;
    float* y;
    uint8_t* which;
};

ENGINE_VECTORISED void values_of_lanes(const Reach& reach, const Run& run) {
    const int64_t count = reach.count, lanes = run.lanes;
    const float* x = run.x;
    for (int64_t window = 0; window < run.windows; window++, x += run.stride) {
        float* const y = run.y + window * run.step;
        uint8_t* const which = run.which ? run.which + window * run.step : nullptr;
        int64_t lane = 0;
        for (; lane + eight <= lanes; lane += eight) {
            Eight best = Eight{} - FLT_MAX;
            Places found = Places{} + nowhere;
            for (int64_t i = 0; i < count; i++) {
                Eight values;
                std::memcpy(&values, x + reach.distances[i] + lane, sizeof(values));
                const Places better = values > best, place = Places{} + reach.places[i];
                best = better ? values : best;
                found = better ? place : found;
            }
            std::memcpy(y + lane, &best, sizeof(best));
            if (!which) continue;
            // GCC's __builtin_convertvector() would convert number by number.
            const Bytes bytes = __builtin_shuffle(Bytes(found), Bytes{0, 4, 8, 12, 16, 20, 24, 28});
            std::memcpy(which + lane, &bytes, eight);
        }
        for (; lane < lanes; lane++) {
            float best = -FLT_MAX;
            int32_t found = nowhere;
            for (int64_t i = 0; i < count; i++) {
                const float value = x[reach.distances[i] + lane];
                found = value > best ? reach.places[i] : found;
                best = value > best ? value : best;
            }
            y[lane] = best;
            if (which) which[lane] = uint8_t(found);
        }
    }
}

// For planes of one channel: does one place after the other, for many windows at once.
ENGINE_VECTORISED void values_of_plane(const Reach& reach, const Run& run) {
    constexpr int64_t most = 128;
    float best[most];
    int32_t found[most];
    for (int64_t begin = 0; begin < run.windows; begin += most) {
        const int64_t windows = std::min(most, run.windows - begin), stride = run.stride;
        std::fill_n(best, windows, -FLT_MAX);
        std::fill_n(found, windows, int32_t(nowhere));
        for (int64_t i = 0; i < reach.count; i++) {
            const float* const x = run.x + begin * stride + reach.distances[i];
            const int32_t place = reach.places[i];
#pragma omp simd
            for (int64_t window = 0; window < windows; window++) {
                const float value = x[window * stride];
                const bool better = value > best[window];
                best[window] = better ? value : best[window];
                found[window] = better ? place : found[window];
            }
        }
        std::copy_n(best, windows, run.y + begin);
        if (run.which) std::copy_n(found, windows, run.which + begin);
    }
}

// Adds the gradients of one window's lanes to the pixels of their maxima. window: where it begins in the gradient of x.
inline void add_gradients(const Reach& whole, const float* given, const uint8_t* which, int64_t lanes, float* window) {
    for (int64_t lane = 0; lane < lanes; lane++)
        if (which[lane] != nowhere) window[whole.distances[which[lane]] + lane] += given[lane];
}

}  // namespace

// Nearly all windows lie within the plane, and share one Reach.
void MaxWindows::values(const ChannelRows& x_rows, const float* x, const ChannelRows& y_rows, float* y,
                        uint8_t* which) const {
    const int64_t blocks = x_rows.blocks(), x_step = x_rows.inner_stride, y_step = y_rows.inner_stride;
    const Reach whole = reach_of(*this, {0, 0, 0}, {outer.kernel, middle.kernel, inner.kernel}, x_step);
    int64_t first = 0, last = inner.pooled;  // [first, last): the windows of a row that lie within the plane
    while (first < last && !inner.holds(first)) first++;
    while (last > first && !inner.holds(last - 1)) last--;
#pragma omp parallel for collapse(2) schedule(static)
    for (int64_t panel = 0; panel < x_rows.panels(); panel++)
        for (int64_t i = 0; i < outer.pooled; i++) {
            const int64_t n = panel / blocks, block = panel % blocks;
            for (int64_t j = 0; j < middle.pooled; j++) {
                const int64_t row = y_rows.offset(n, block) + (i * middle.pooled + j) * inner.pooled * y_step;
                const auto compute = [&](const Reach& reach, int64_t k, int64_t windows) {
                    const int64_t from = x_rows.offset(n, block) + start(i, j, k) * x_step, to = row + k * y_step;
                    const Run run{windows, inner.stride * x_step,       x_rows.lanes, y_step, x + from,
                                  y + to,  which ? which + to : nullptr};
                    run.lanes == 1 ? values_of_plane(reach, run) : values_of_lanes(reach, run);
                };
                const auto compute_each = [&](int64_t begin, int64_t end) {
                    for (int64_t k = begin; k < end; k++) {
                        const int64_t from[] = {outer.begin(i), middle.begin(j), inner.begin(k)};
                        const int64_t to[] = {outer.end(i), middle.end(j), inner.end(k)};
                        compute(reach_of(*this, from, to, x_step), k, 1);
                    }
                };
                if (first == last || !outer.holds(i) || !middle.holds(j)) {
                    compute_each(0, inner.pooled);
                    continue;
                }
                compute_each(0, first);
                compute(whole, first, last - first);
                compute_each(last, inner.pooled);
            }
        }
}

void MaxWindows::gradients(const ChannelRows& x_rows, const ChannelRows& y_rows, const float* given,
                           const uint8_t* which, float* wanted) const {
    const int64_t blocks = x_rows.blocks(), x_step = x_rows.inner_stride, y_step = y_rows.inner_stride;
    const int64_t lanes = x_rows.lanes, slice = middle.size * inner.size;
    const Reach whole = reach_of(*this, {0, 0, 0}, {outer.kernel, middle.kernel, inner.kernel}, x_step);
#pragma omp parallel for schedule(static)
    for (int64_t panel = 0; panel < x_rows.panels(); panel++) {
        float* const to = wanted + x_rows.offset(panel / blocks, panel % blocks);
        int64_t at = y_rows.offset(panel / blocks, panel % blocks), cleared = 0;
        const auto clear_until = [&](int64_t end) {  // clears slices just before they are added to, for the cache
            const int64_t positions = end * slice - cleared;
            if (positions <= 0) return;
            if (x_step == lanes)
                std::fill_n(to + cleared * lanes, positions * lanes, 0.f);
            else
                for (int64_t i = cleared; i < end * slice; i++) std::fill_n(to + i * x_step, lanes, 0.f);
            cleared = end * slice;
        };
        for (int64_t i = 0; i < outer.pooled; i++) {
            clear_until(outer.start(i) + outer.end(i));
            for (int64_t j = 0; j < middle.pooled; j++)
                for (int64_t k = 0; k < inner.pooled; k++, at += y_step)
                    add_gradients(whole, given + at, which + at, lanes, to + start(i, j, k) * x_step);
        }
        clear_until(outer.size);
    }
}

}  // namespace engine
