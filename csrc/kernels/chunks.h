// Divides long arrays into pieces, which threads share.
#pragma once

#include <omp.h>

#include <algorithm>
#include <climits>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace engine {

// The most elements of a piece: a few arrays of so many fit into the first-level cache together.
constexpr int64_t chunk_size = 2048;

// Calls work(begin, length) for pieces of [0, count), in parallel.
template <typename Work>
void in_chunks(int64_t count, const Work& work) {
#pragma omp parallel for schedule(static) if (count > chunk_size)
    for (int64_t begin = 0; begin < count; begin += chunk_size) work(begin, std::min(chunk_size, count - begin));
}

// Divides blobs (samples, channels, positions) into strips of neighbouring positions: a strip's elements of all
// channels fit into a second-level cache. Strips do not depend on the number of threads, nor do sums over them in their
// order.
struct Strips {
    static constexpr int64_t widest = 1024;

    int64_t samples, channels, positions;
    int most_threads = INT_MAX;  // of each()

    int64_t width() const { return std::clamp<int64_t>((1 << 16) / channels / 16 * 16, 16, widest); }
    int64_t of_sample() const { return (positions + width() - 1) / width(); }
    int64_t count() const { return samples * of_sample(); }

    // Calls work(strip, sample, first position, positions) for all strips, in parallel.
    template <typename Work>
    void each(const Work& work) const {
        const int64_t strips = of_sample(), all = count(), most = width();
#pragma omp parallel for schedule(static) num_threads(std::min(most_threads, omp_get_max_threads())) if (all > 1)
        for (int64_t strip = 0; strip < all; strip++) {
            const int64_t begin = strip % strips * most;
            work(strip, strip / strips, begin, std::min(most, positions - begin));
        }
    }
};

// Returns the sum of sum_of(sample, first position, positions) over all strips, in their order. sum_of() is called in
// any thread. sums: memory for the result of each strip.
template <typename Sum, typename SumOf>
Sum sum_of_strips(const Strips& strips, std::vector<Sum>& sums, const SumOf& sum_of) {
    sums.resize(size_t(strips.count()));
    strips.each(
        [&](int64_t strip, int64_t n, int64_t begin, int64_t length) { sums[strip] = sum_of(n, begin, length); });
    Sum sum{};
    for (const Sum& each : sums) sum += each;
    return sum;
}

}  // namespace engine
