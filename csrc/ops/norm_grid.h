// A tensor's channels in slices, each a few channels of all samples, and these in panels: how BatchNorm walks memory.
#pragma once

#include <omp.h>

#include <vector>

#include "channel_rows.h"
#include "norm_rows.h"

namespace engine {

// Neighbouring channels that are worked on together; where channels lie one by one in memory (`run`), a single one,
// whose values then fill the lanes.
struct Slice {
    int64_t channel, count;
    bool run;
};

class NormGrid {
public:
    explicit NormGrid(const ChannelRows& rows) : rows_(rows) {
        // Single rows of many samples are many rows of one.
        if (rows_.inner == 1) {
            rows_.inner = rows_.outer;
            rows_.inner_stride = rows_.outer_stride;
            rows_.outer = 1;
        }
        const bool run = rows_.lanes == 1;
        const int64_t widest = run ? 1 : std::min(Panel::widest, rows_.lanes);
        for (int64_t channel = 0; channel < rows_.channels;) {
            int64_t count = widest;
            while (count > 16 && channel + count > rows_.channels) count /= 2;
            count = std::min(count, rows_.channels - channel);
            slices_.push_back({channel, count, run});
            channel += count;
        }
    }

    int64_t outer() const { return rows_.outer; }
    int64_t channels() const { return rows_.channels; }
    int64_t per_channel() const { return rows_.outer * rows_.inner; }
    int64_t per_panel() const { return rows_.inner; }

    // True if rows of panels, of elements of that size, all begin at multiples of `bytes`.
    bool aligned(int64_t element, int64_t bytes) const {
        const int64_t step = slices_[0].run ? rows_.inner : rows_.inner_stride;
        return step * element % bytes == 0 && rows_.outer_stride * element % bytes == 0;
    }

    // each(panel, where it begins), for the part of sample n that belongs to a slice.
    template <typename Each>
    void panels(int64_t n, const Slice& slice, const Each& each) const {
        const int64_t block = slice.channel / rows_.lanes;
        const int64_t at = rows_.offset(n, block) + slice.channel % rows_.lanes;
        if (!slice.run) return each(Panel{rows_.inner, rows_.inner_stride, slice.count}, at);
        const int64_t whole = rows_.inner / 16;
        if (whole) each(Panel{whole, 16, 16}, at);
        if (rows_.inner % 16) each(Panel{1, 16, rows_.inner % 16}, at + 16 * whole);
    }

    // first(n, slice) for all samples n of a slice, then middle(slice), then second(n, slice) for all n, the last
    // first: they may still be in the cache. Threads take slices, or, where there are few, samples.
    template <typename First, typename Middle, typename Second>
    void run(const First& first, const Middle& middle, const Second& second) const {
        const int64_t slices = int64_t(slices_.size()), n = outer();
        const int threads = omp_get_max_threads();
        if (n == 1 || slices % threads == 0 || slices > 8 * threads) {
#pragma omp parallel for schedule(static)
            for (int64_t s = 0; s < slices; s++) {
                for (int64_t i = 0; i < n; i++) first(i, slices_[s]);
                middle(slices_[s]);
                for (int64_t i = n; i-- > 0;) second(i, slices_[s]);
            }
            return;
        }
#pragma omp parallel
        {
#pragma omp for schedule(static)
            for (int64_t i = 0; i < n * slices; i++) first(i / slices, slices_[i % slices]);
#pragma omp for schedule(static)
            for (int64_t s = 0; s < slices; s++) middle(slices_[s]);
#pragma omp for schedule(static)
            for (int64_t i = 0; i < n * slices; i++) second(i / slices, slices_[i % slices]);
        }
    }

private:
    ChannelRows rows_;
    std::vector<Slice> slices_;
};

// The coefficients of a slice, one per lane.
class Coefficients {
public:
    Coefficients(const Slice& slice, const float* of_channels) {
        if (!of_channels) return;
        values_ = of_channels + slice.channel;
        if (!slice.run) return;
        std::fill_n(repeated_, 16, *values_);
        values_ = repeated_;
    }
    operator const float*() const { return values_; }

private:
    const float* values_ = nullptr;
    float repeated_[16];
};

// Sums of lanes, gathered over panels: one for each channel of the slice.
inline void add_lanes(const Slice& slice, const Panel& panel, const float* lanes, float* sums) {
    if (!slice.run) return void(std::copy_n(lanes, slice.count, sums));  // one panel only
    for (int64_t lane = 0; lane < panel.lanes; lane++) *sums += lanes[lane];
}

}  // namespace engine
