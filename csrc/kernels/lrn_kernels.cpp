#include "kernels/lrn_kernels.h"

#include <omp.h>

#include <algorithm>
#include <cmath>

#include "kernels/bf16.h"
#include "kernels/vectorised.h"

namespace engine {

namespace {

constexpr int64_t most_columns = 256;

// A tile of a blob that can be computed by itself: columns [begin, end) of one sample, whose rows are the channels; or
// a plane of one channel, in which neighbours lie in all directions.
struct Tile {
    int64_t offset, rows, step, width, begin, end, half;
    bool plane;
};

// Returns scale^-beta. Nearly all nets have beta 0.75, for which roots are several times as fast as powf.
template <bool by_roots>
ENGINE_INLINE float power(float scale, float beta) {
    if (!by_roots) return powf(scale, -beta);
    const float root = std::sqrt(scale);
    return 1 / (root * std::sqrt(root));
}

template <bool squared>
ENGINE_INLINE void add(const float* x, float* sum, int64_t length) {
#pragma omp simd
    for (int64_t i = 0; i < length; i++) sum[i] += squared ? x[i] * x[i] : x[i];
}

// Sets sum[i] to the sum of x, or of x^2, over the neighbours of column begin + i of a row.
template <bool squared>
ENGINE_INLINE void add_up(const Tile& tile, const float* x, int64_t row, int64_t begin, int64_t end, float* sum) {
    std::fill_n(sum, end - begin, 0.f);
    const int64_t last = std::min(row + tile.half, tile.rows - 1);
    for (int64_t other = std::max<int64_t>(row - tile.half, 0); other <= last; other++) {
        const float* const from = x + other * tile.step;
        if (!tile.plane) {
            add<squared>(from + begin, sum, end - begin);
            continue;
        }
        for (int64_t shift = -tile.half; shift <= tile.half; shift++) {
            const int64_t first = std::max(begin, -shift), behind = std::min(end, tile.width - shift);
            add<squared>(from + first + shift, sum + first - begin, behind - first);
        }
    }
}

// Calls work(row, begin, end) for stretches of the tile's rows.
template <typename Work>
ENGINE_INLINE void over_stretches(const Tile& tile, const Work& work) {
    for (int64_t row = 0; row < tile.rows; row++)
        for (int64_t begin = tile.begin; begin < tile.end; begin += most_columns)
            work(row, begin, std::min(begin + most_columns, tile.end));
}

template <bool by_roots>
ENGINE_VECTORISED void values_of(const Tile& tile, const LrnKernels& lrn, const float* x, float* scales, float* y) {
    over_stretches(tile, [&](int64_t row, int64_t begin, int64_t end) ENGINE_BODY {
        float* const scale = scales + row * tile.step;
        add_up<true>(tile, x, row, begin, end, scale + begin);
        const float* const from = x + row * tile.step;
        float* const into = y + row * tile.step;
#pragma omp simd
        for (int64_t i = begin; i < end; i++) {
            scale[i] = lrn.k + lrn.alpha * scale[i];
            into[i] = from[i] * power<by_roots>(scale[i], lrn.beta);
        }
    });
}

// wanted = given scales^-beta - 2 alpha beta x sum over the neighbours of given x scales^-(beta + 1)
template <bool by_roots>
ENGINE_VECTORISED void gradients_of(const Tile& tile, const LrnKernels& lrn, const float* x, const float* scales,
                                    const float* given, float* ratios, float* wanted) {
    over_stretches(tile, [&](int64_t row, int64_t begin, int64_t end) ENGINE_BODY {
        const int64_t at = row * tile.step;
#pragma omp simd
        for (int64_t i = at + begin; i < at + end; i++) {
            wanted[i] = given[i] * power<by_roots>(scales[i], lrn.beta);
            ratios[i] = wanted[i] * x[i] / scales[i];
        }
    });
    const float factor = 2 * lrn.alpha * lrn.beta;
    over_stretches(tile, [&](int64_t row, int64_t begin, int64_t end) ENGINE_BODY {
        float sum[most_columns];
        add_up<false>(tile, ratios, row, begin, end, sum);
        const float* const from = x + row * tile.step + begin;
        float* const into = wanted + row * tile.step + begin;
#pragma omp simd
        for (int64_t i = 0; i < end - begin; i++) into[i] -= factor * from[i] * sum[i];
    });
}

// For channels side by side. A line holds the channels of one position; squares and ratios, which are summed over
// neighbours, have `half` zeros on either side. Several positions are done at a time, because blocks of channels lie
// far apart in memory.
constexpr int64_t most_positions = 16;

template <typename T>
ENGINE_VECTORISED void read_lines(const ChannelRows& rows, const T* from, int64_t positions, float* lines) {
    const int64_t length = rows.padded_channels(), lanes = rows.lanes;
    for (int64_t block = 0; block < rows.blocks(); block++)
        for (int64_t i = 0; i < positions; i++) {
            const T* const row = from + block * rows.block_stride + i * rows.inner_stride;
            float* const into = lines + i * length + block * lanes;
#pragma omp simd
            for (int64_t lane = 0; lane < lanes; lane++) into[lane] = number(row[lane]);
        }
}

template <typename T>
ENGINE_VECTORISED void write_lines(const ChannelRows& rows, const float* lines, int64_t positions, T* to) {
    const int64_t length = rows.padded_channels(), lanes = rows.lanes;
    for (int64_t block = 0; block < rows.blocks(); block++)
        for (int64_t i = 0; i < positions; i++) {
            const float* const line = lines + i * length + block * lanes;
            T* const into = to + block * rows.block_stride + i * rows.inner_stride;
#pragma omp simd
            for (int64_t lane = 0; lane < lanes; lane++) store(line[lane], into[lane]);
        }
}

// Returns the sum over the neighbours of channel i, of numbers that have `half` zeros before them. fixed: half, if it
// is known when this is compiled; else 0.
template <int64_t fixed>
ENGINE_INLINE float around(const float* numbers, int64_t i, int64_t half) {
    float sum = 0;
    for (int64_t shift = 0; shift <= 2 * (fixed ? fixed : half); shift++) sum += numbers[i + shift];
    return sum;
}

// Replaces lines of x by those of y. A line has `length` numbers, of which the first `channels` count.
template <bool by_roots, int64_t fixed>
ENGINE_VECTORISED void values_of_lines(const LrnKernels& lrn, float* lines, int64_t positions, int64_t length,
                                       float* squares) {
    const int64_t channels = lrn.channels, half = lrn.size / 2;
    const float alpha = lrn.alpha, beta = lrn.beta, k = lrn.k;
    for (float* x = lines; x != lines + positions * length; x += length) {
#pragma omp simd
        for (int64_t i = 0; i < channels; i++) squares[half + i] = x[i] * x[i];
#pragma omp simd
        for (int64_t i = 0; i < channels; i++)
            x[i] *= power<by_roots>(k + alpha * around<fixed>(squares, i, half), beta);
    }
}

// Replaces lines of the gradient of y by those of the gradient of x. `squares` and `ratios` have zeros on either side.
template <bool by_roots, int64_t fixed>
ENGINE_VECTORISED void gradients_of_lines(const LrnKernels& lrn, const float* lines, float* given, int64_t positions,
                                          int64_t length, float* squares, float* ratios) {
    const int64_t channels = lrn.channels, half = lrn.size / 2;
    const float alpha = lrn.alpha, beta = lrn.beta, k = lrn.k, factor = 2 * alpha * beta;
    for (int64_t position = 0; position < positions; position++, given += length) {
        const float* const x = lines + position * length;
#pragma omp simd
        for (int64_t i = 0; i < channels; i++) squares[half + i] = x[i] * x[i];
#pragma omp simd
        for (int64_t i = 0; i < channels; i++) {
            const float scale = k + alpha * around<fixed>(squares, i, half);
            given[i] *= power<by_roots>(scale, beta);
            ratios[half + i] = given[i] * x[i] / scale;
        }
#pragma omp simd
        for (int64_t i = 0; i < channels; i++) given[i] -= factor * x[i] * around<fixed>(ratios, i, half);
    }
}

// Calls work(by_roots, fixed), both as types that hold a constant.
template <typename Work>
void with_constants(const LrnKernels& lrn, const Work& work) {
    const auto with = [&](auto by_roots) {
        if (lrn.size == 5)
            work(by_roots, std::integral_constant<int64_t, 2>{});
        else
            work(by_roots, std::integral_constant<int64_t, 0>{});
    };
    lrn.beta == 0.75f ? with(std::true_type{}) : with(std::false_type{});
}

// Calls work(offset of the first position, positions) for all positions, in parallel.
template <typename Work>
void over_positions(const ChannelRows& rows, int team, const Work& work) {
    const int64_t groups = (rows.inner + most_positions - 1) / most_positions;
#pragma omp parallel for schedule(static) num_threads(team)
    for (int64_t i = 0; i < rows.outer * groups; i++) {
        const int64_t begin = i % groups * most_positions;
        work(i / groups * rows.outer_stride + begin * rows.inner_stride, std::min(most_positions, rows.inner - begin));
    }
}

}  // namespace

// Calls work(tile) for all tiles, in parallel.
template <typename Work>
void LrnKernels::in_tiles(const Work& work) const {
    const int64_t plane = height * width, groups = (plane + most_columns - 1) / most_columns;
    const int64_t tiles = outer * (across_channels ? groups : channels);
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < tiles; i++) {
        const int64_t begin = i % groups * most_columns, end = std::min(begin + most_columns, plane);
        if (across_channels)
            work(Tile{i / groups * channels * plane, channels, plane, plane, begin, end, size / 2, false});
        else
            work(Tile{i * plane, height, width, width, 0, width, size / 2, true});
    }
}

void LrnKernels::values(const float* x, float* scales, float* y) const {
    with_constants(*this, [&](auto by_roots, auto) {
        in_tiles([&](const Tile& tile) {
            const int64_t at = tile.offset;
            values_of<by_roots.value>(tile, *this, x + at, scales + at, y + at);
        });
    });
}

void LrnKernels::gradients(const float* x, const float* scales, const float* given, float* ratios,
                           float* wanted) const {
    with_constants(*this, [&](auto by_roots, auto) {
        in_tiles([&](const Tile& tile) {
            const int64_t at = tile.offset;
            gradients_of<by_roots.value>(tile, *this, x + at, scales + at, given + at, ratios + at, wanted + at);
        });
    });
}

// There is room for lines of x and of gradients, squares and ratios.
int64_t LrnKernels::scratch_size(const ChannelRows& rows) const {
    return 2 * most_positions * rows.padded_channels() + 2 * (channels + size);
}

template <typename T>
void LrnKernels::values_in_lanes(const ChannelRows& rows, const T* x, T* y, float* scratch, int team) const {
    const int64_t length = rows.padded_channels(), own = scratch_size(rows);
    with_constants(*this, [&](auto by_roots, auto fixed) {
        over_positions(rows, team, [&](int64_t at, int64_t positions) {
            float* const lines = scratch + omp_get_thread_num() * own;
            float* const squares = lines + most_positions * length;
            std::fill_n(squares, channels + size, 0.f);
            read_lines(rows, x + at, positions, lines);
            values_of_lines<by_roots.value, fixed.value>(*this, lines, positions, length, squares);
            write_lines(rows, lines, positions, y + at);
        });
    });
}

template <typename T>
void LrnKernels::gradients_in_lanes(const ChannelRows& rows, const T* x, const T* given, T* wanted, float* scratch,
                                    int team) const {
    const int64_t length = rows.padded_channels(), own = scratch_size(rows);
    with_constants(*this, [&](auto by_roots, auto fixed) {
        over_positions(rows, team, [&](int64_t at, int64_t positions) {
            float* const lines = scratch + omp_get_thread_num() * own;
            float* const gradients = lines + most_positions * length;
            float* const squares = gradients + most_positions * length;
            float* const ratios = squares + channels + size;
            std::fill_n(squares, 2 * (channels + size), 0.f);
            read_lines(rows, x + at, positions, lines);
            read_lines(rows, given + at, positions, gradients);
            gradients_of_lines<by_roots.value, fixed.value>(*this, lines, gradients, positions, length, squares,
                                                            ratios);
            write_lines(rows, gradients, positions, wanted + at);
        });
    });
}

template void LrnKernels::values_in_lanes(const ChannelRows&, const float*, float*, float*, int) const;
template void LrnKernels::values_in_lanes(const ChannelRows&, const bf16*, bf16*, float*, int) const;
template void LrnKernels::gradients_in_lanes(const ChannelRows&, const float*, const float*, float*, float*, int) const;
template void LrnKernels::gradients_in_lanes(const ChannelRows&, const bf16*, const bf16*, bf16*, float*, int) const;

}  // namespace engine
