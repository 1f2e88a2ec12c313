// What ops share that treat all elements alike, whatever the layout: they run over the raw memory, padding included.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "../op.h"

namespace engine {

// Elements of one piece of work: a few of its operands fit into the first-level cache together.
constexpr int64_t chunk_size = 2048;

// Calls work(begin, length) for pieces of [0, count), in parallel.
template <typename Work>
void in_chunks(int64_t count, const Work& work) {
#pragma omp parallel for schedule(static) if (count > chunk_size)
    for (int64_t begin = 0; begin < count; begin += chunk_size) work(begin, std::min(chunk_size, count - begin));
}

// Folds x[0], x[1], ... into y, piece by piece: combine(i, so_far, x[i], into, begin, length) for every i from 1 on.
// All x are read before y is written, so y may be any of them.
template <typename Combine>
void fold_chunks(const std::vector<const float*>& x, float* y, int64_t count, const Combine& combine) {
    in_chunks(count, [&](int64_t begin, int64_t length) {
        float partial[chunk_size];
        const float* so_far = x[0] + begin;
        for (size_t i = 1; i < x.size(); i++) {
            float* const into = i + 1 == x.size() ? y + begin : partial;
            combine(i, so_far, x[i] + begin, into, begin, length);
            so_far = partial;
        }
    });
}

// y = sum of coefficients[i] x[i], or 0 where that is negative with `relu`; y may be any x.
void weighted_sum(const std::vector<const float*>& x, const std::vector<float>& coefficients, float* y, int64_t count,
                  bool relu = false);

// The same for one piece of one x.
void scaled(const float* x, float coefficient, float* y, int64_t length);

// Elements in memory of a float32 tensor, padding included.
inline int64_t raw_count(const Layout& layout) { return int64_t(layout.get_size() / sizeof(float)); }

inline float* floats(const dnnl::memory& memory) { return static_cast<float*>(memory.get_data_handle()); }

}  // namespace engine
