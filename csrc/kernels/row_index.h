// Rows chosen by number: what BatchReindex, Embed and Filter have in common. Arrays are of rows, `width` elements each.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/bf16.h"

namespace engine {

// Row numbers arrive as floats. Throws, naming the layer, when one is outside [0, limit).
void read_rows(const std::string& layer, const float* values, int64_t limit, std::vector<int64_t>& rows);

// Row i of y becomes row rows[i] of x, or zero where that is negative. T: float, bf16.
template <typename T>
void gather_rows(const T* x, const std::vector<int64_t>& rows, int64_t width, T* y);

// Who adds to each row, found anew in every pass in the same memory: of `rows`, those from ends[r] to ends[r + 1] add
// to row r.
struct RowSenders {
    std::vector<int64_t> ends, rows;
};

// The reverse: each of the `count` rows of x becomes the sum of all rows i of y for which it is row rows[i], in the
// order of i, and of what it is, with `add`. Sums are float32, and rounded once.
template <typename T>
void scatter_rows(const T* y, const std::vector<int64_t>& rows, int64_t width, T* x, int64_t count, bool add,
                  RowSenders& senders);

}  // namespace engine
