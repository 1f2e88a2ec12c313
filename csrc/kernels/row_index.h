// Rows chosen by number: what BatchReindex, Embed and Filter have in common. Arrays are row-major, `width` elements to
// a row.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace engine {

// Row numbers arrive as floats. Throws, naming the layer, when one is outside [0, limit).
void read_rows(const std::string& layer, const float* values, int64_t limit, std::vector<int64_t>& rows);

// Row i of y becomes row rows[i] of x, or zero where that is negative.
void gather_rows(const float* x, const std::vector<int64_t>& rows, int64_t width, float* y);

// The reverse: row rows[i] of x grows by row i of y, in the order of i, for all that are not negative. The `count` rows
// of x start from zero, or from what they are with `add`.
void scatter_rows(const float* y, const std::vector<int64_t>& rows, int64_t width, float* x, int64_t count, bool add);

}  // namespace engine
