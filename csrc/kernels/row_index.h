// Copies and sums rows by number, for BatchReindex, Embed and Filter. Arrays are rows of `width` elements.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/bf16.h"

namespace engine {

// Converts row numbers, which arrive as float32. Throws std::runtime_error, which names the layer, for one outside [0,
// limit).
void read_rows(const std::string& layer, const float* values, int64_t limit, std::vector<int64_t>& rows);

// Sets row i of y to row rows[i] of x, or to zero if rows[i] is negative. T: float, bf16.
template <typename T>
void gather_rows(const T* x, const std::vector<int64_t>& rows, int64_t width, T* y);

// The rows that are added to each row: rows[ends[r]] to rows[ends[r + 1] - 1] to row r. It is set anew in every pass,
// in the same memory.
struct RowSenders {
    std::vector<int64_t> ends, rows;
};

// Does the reverse: sets each of the `count` rows r of x to the sum of all rows i of y with rows[i] = r, in the order
// of i, or adds it with `add`. Sums are float32, and rounded once.
template <typename T>
void scatter_rows(const T* y, const std::vector<int64_t>& rows, int64_t width, T* x, int64_t count, bool add,
                  RowSenders& senders);

}  // namespace engine
