// Pieces of rows, from one array to another whose rows may be longer: how Concat moves its bottoms, and how the
// gradient of one of them is added to that of all.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/bf16.h"

namespace engine {

// `length` elements at the beginning of each row; rows begin `pitch` elements apart.
template <typename T>
struct RowPiece {
    T* at;
    int64_t pitch;
};

struct RowCopy {
    RowPiece<const char> from;
    RowPiece<char> to;
    int64_t length;  // bytes, as the pitches are
};

// All of them in one pass; each has as many rows.
void copy_rows(const std::vector<RowCopy>& copies, int64_t rows);

// to += from, rounded once where that is bf16.
void add_rows(RowPiece<const float> from, RowPiece<float> to, int64_t length, int64_t rows);
void add_rows(RowPiece<const bf16> from, RowPiece<bf16> to, int64_t length, int64_t rows);

}  // namespace engine
