// Sums float32 in double, by vectors: the order of additions depends on their width, not on the number of threads.
#pragma once

#include <cstdint>

namespace engine {

double sum_of(const float* x, int64_t length);
double squared_distance(const float* a, const float* b, int64_t length);

}  // namespace engine
