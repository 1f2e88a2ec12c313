// Divides a tensor's channels into slices, each a few channels, and its samples into chunks, in which BatchNorm walks
// memory.
#pragma once

#include <omp.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "kernels/channel_rows.h"
#include "kernels/norm_rows.h"

namespace engine {

// Neighbouring channels that are done together. If each channel's values lie side by side in memory (`run`), a slice is
// one channel, and its values fill the lanes.
struct ChannelSlice {
    static constexpr int64_t widest = 64;
    int64_t channel, count;
    bool run;
};

class NormGrid {
public:
    // rows: of all arrays but x; x: of x, which differ in strides only.
    NormGrid(const ChannelRows& rows, const ChannelRows& x, int64_t element_bytes) : rows_(rows), x_(x) {
        const bool run = rows_.lanes == 1;
        element_bytes_ = element_bytes;
        all_ = {0, rows_.channels, false};
        const int64_t widest = run ? 1 : std::min(ChannelSlice::widest, rows_.lanes);
        for (int64_t channel = 0; channel < rows_.channels;) {
            int64_t count = widest;
            while (count > 16 && channel + count > rows_.channels) count /= 2;
            count = std::min(count, rows_.channels - channel);
            slices_.push_back({channel, count, run});
            channel += count;
        }
        dense_ = rows_.lanes == rows_.channels && !run && follows_itself(rows_) && follows_itself(x_);
        if (rows_.inner == 1 && !run) dense_ = true;
        chunks_ = rows_.outer;
        if (!dense_) return;
        const int64_t row_bytes = rows_.channels * element_bytes, total = rows_.outer * rows_.inner;
        if (rows_.inner == 1) {
            rows_.inner_stride = rows_.outer_stride;
            x_.inner_stride = x_.outer_stride;
        }
        block_rows_ = std::max<int64_t>(8, block_bytes / row_bytes);
        rows_.inner = (chunk_bytes / row_bytes / block_rows_ + 1) * block_rows_;
        chunks_ = (total + rows_.inner - 1) / rows_.inner;
        total_ = total;
    }

    int64_t chunks() const { return chunks_; }
    int64_t channels() const { return rows_.channels; }
    const ChannelSlice& slice(int64_t i) const { return slices_[size_t(i)]; }
    int64_t per_channel() const { return dense_ ? total_ : rows_.outer * rows_.inner; }

    // Tells whether all rows, of elements of `element` bytes, begin at multiples of `bytes` from the first.
    bool aligned(int64_t element, int64_t bytes) const {
        const int64_t step = slices_[0].run ? rows_.inner : rows_.inner_stride;
        return step * element % bytes == 0 && rows_.outer_stride * element % bytes == 0;
    }

    // Calls each(slice, panel, where it begins, where it begins in x) for all panels of a chunk and the slices [first,
    // last).
    template <typename Each>
    void panels(int64_t chunk, int64_t first, int64_t last, const Each& each) const {
        if (dense_) return dense_panels(chunk, each);
        for (int64_t s = first; s < last; s++) {
            const ChannelSlice& slice = slices_[s];
            const int64_t block = slice.channel / rows_.lanes, lane = slice.channel % rows_.lanes;
            const int64_t at = rows_.offset(chunk, block) + lane, x_at = x_.offset(chunk, block) + lane;
            if (!slice.run) {
                each(slice, alone(rows_.inner, rows_.inner_stride, x_.inner_stride, slice.count), at, x_at);
                continue;
            }
            const int64_t whole = rows_.inner / 16, rest = rows_.inner % 16;
            if (whole) each(slice, alone(whole, 16, 16, 16), at, x_at);
            if (rest) each(slice, alone(1, 16, 16, rest), at + 16 * whole, x_at + 16 * whole);
        }
    }

    // Calls each(slice, panel, where it begins in x) for a few values of every channel, which tell their rough mean.
    template <typename Each>
    void sample(const Each& each) const {
        const int64_t rows = std::min<int64_t>(16, rows_.lanes == 1 ? rows_.inner / 16 : per_row_limit());
        for (const ChannelSlice& slice : slices_) {
            const int64_t at =
                dense_ ? slice.channel : x_.offset(0, slice.channel / rows_.lanes) + slice.channel % rows_.lanes;
            if (!slice.run)
                each(slice, alone(rows, rows_.inner_stride, x_.inner_stride, slice.count), at);
            else if (rows > 0)
                each(slice, alone(rows, 16, 16, 16), at);
            else
                each(slice, alone(1, 16, 16, rows_.inner), at);
        }
    }

    // Calls first(chunk, first slice, end slice) for everything, then middle(slice) for all slices, then second(chunk,
    // first slice, end slice) for everything, in reverse order, because the last ones may still be in the cache.
    // Results do not depend on the number of threads.
    template <typename First, typename Middle, typename Second>
    void run(const First& first, const Middle& middle, const Second& second) const {
        const int64_t slices = int64_t(slices_.size()), threads = omp_get_max_threads();
        if (!dense_ && (slices % threads == 0 || slices > 8 * threads)) {
#pragma omp parallel for schedule(static)
            for (int64_t s = 0; s < slices; s++) {
                for (int64_t chunk = 0; chunk < chunks_; chunk++) first(chunk, s, s + 1);
                middle(slices_[s]);
                for (int64_t chunk = chunks_; chunk-- > 0;) second(chunk, s, s + 1);
            }
            return;
        }
        const int64_t together = dense_ ? slices : 1, pieces = slices / together, items = chunks_ * pieces;
#pragma omp parallel if (items > 1)
        {
            const int64_t thread = omp_get_thread_num(), team = omp_get_num_threads();
            const int64_t begin = items * thread / team, end = items * (thread + 1) / team;
            for (int64_t i = begin; i < end; i++) first(i / pieces, i % pieces * together, (i % pieces + 1) * together);
#pragma omp barrier
#pragma omp for schedule(static)
            for (int64_t s = 0; s < slices; s++) middle(slices_[s]);
            for (int64_t i = end; i-- > begin;) second(i / pieces, i % pieces * together, (i % pieces + 1) * together);
        }
    }

private:
    // Tells whether each sample's rows follow those of the one before.
    static bool follows_itself(const ChannelRows& rows) { return rows.outer_stride == rows.inner * rows.inner_stride; }

    static constexpr int64_t block_bytes = 8 << 10, chunk_bytes = 128 << 10;

    int64_t per_row_limit() const { return dense_ ? total_ : rows_.inner; }

    // Returns a panel whose successor lies elsewhere, so that nothing behind it is prefetched.
    Panel alone(int64_t rows, int64_t step, int64_t x_step, int64_t lanes) const {
        return {rows, step, x_step, lanes, std::min(rows / 4, block_bytes / (step * element_bytes_)), rows};
    }

    // Calls each() for a chunk whose rows hold all channels, in blocks of rows, with prefetching beyond them.
    template <typename Each>
    void dense_panels(int64_t chunk, const Each& each) const {
        const int64_t begin = chunk * rows_.inner, end = std::min(begin + rows_.inner, total_);
        const int64_t step = rows_.inner_stride;
        for (int64_t row = begin; row < end; row += block_rows_) {
            const int64_t rows = std::min(block_rows_, end - row);
            each(all_, Panel{rows, step, x_.inner_stride, rows_.channels, block_rows_, total_ - row}, row * step,
                 row * x_.inner_stride);
        }
    }

    ChannelRows rows_, x_;
    int64_t element_bytes_;
    std::vector<ChannelSlice> slices_;
    ChannelSlice all_;
    bool dense_;  // channels last without gaps between rows: chunks are runs of rows; else they are samples
    int64_t chunks_ = 0;
    int64_t block_rows_ = 0, total_ = 0;
};

// The coefficients of a slice, one for each lane.
class Coefficients {
public:
    Coefficients(const ChannelSlice& slice, const float* of_slice) : values_(of_slice) {
        if (!slice.run || !of_slice) return;
        std::fill_n(repeated_, 16, *of_slice);
        values_ = repeated_;
    }
    Coefficients(const Coefficients&) = delete;
    operator const float*() const { return values_; }

private:
    const float* values_;
    float repeated_[16];
};

}  // namespace engine
