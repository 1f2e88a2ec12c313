// Copies and adds pieces of rows between arrays whose rows may differ in length: Concat copies its bottoms so, and
// Split adds gradients to a slice of a larger blob.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/bf16.h"

namespace engine {

// The beginnings of rows, which are `pitch` elements apart.
template <typename T>
struct RowPiece {
    T* at;
    int64_t pitch;
};

struct RowCopy {
    RowPiece<const char> from;
    RowPiece<char> to;
    int64_t length;  // of each row's piece; lengths and pitches are in bytes
};

// Makes all copies, of `rows` rows each, in one parallel pass.
void copy_rows(const std::vector<RowCopy>& copies, int64_t rows);

// to += from, `length` elements of each row; rounded once if `to` is bf16.
void add_rows(RowPiece<const float> from, RowPiece<float> to, int64_t length, int64_t rows);
void add_rows(RowPiece<const bf16> from, RowPiece<bf16> to, int64_t length, int64_t rows);

}  // namespace engine
