// Long arrays are worked on in pieces, which threads share.
#pragma once

#include <algorithm>
#include <cstdint>

namespace engine {

// Elements of one piece of work: a few of its operands fit into the first-level cache together.
constexpr int64_t chunk_size = 2048;

// Calls work(begin, length) for pieces of [0, count), in parallel.
template <typename Work>
void in_chunks(int64_t count, const Work& work) {
#pragma omp parallel for schedule(static) if (count > chunk_size)
    for (int64_t begin = 0; begin < count; begin += chunk_size) work(begin, std::min(chunk_size, count - begin));
}

}  // namespace engine
