#include "kernels/row_pieces.h"

#include <omp.h>

#include <cstring>

#include "kernels/add_row.h"

namespace engine {

namespace {

constexpr int64_t line = 64, few_bytes = 32 << 10;  // few_bytes: too few to wake other threads

// Returns where a thread's share of the `length` bytes of a row begins: at a cache line.
int64_t share(int64_t length, int64_t thread, int64_t team) {
    return thread == team ? length : length * thread / team / line * line;
}

template <typename T>
void add_all(RowPiece<const T> from, RowPiece<T> to, int64_t length, int64_t rows) {
#pragma omp parallel for schedule(static) if (rows * length * int64_t(sizeof(T)) > few_bytes)
    for (int64_t row = 0; row < rows; row++) add_row(from.at + row * from.pitch, to.at + row * to.pitch, length);
}

}  // namespace

void copy_rows(const std::vector<RowCopy>& copies, int64_t rows) {
    int64_t bytes = 0;
    for (const RowCopy& copy : copies) bytes += rows * copy.length;
#pragma omp parallel if (bytes > few_bytes)
    {
        const int64_t thread = omp_get_thread_num(), team = omp_get_num_threads();
        if (rows >= 4 * team) {
            for (int64_t row = rows * thread / team; row < rows * (thread + 1) / team; row++)
                for (const RowCopy& copy : copies)
                    std::memcpy(copy.to.at + row * copy.to.pitch, copy.from.at + row * copy.from.pitch,
                                size_t(copy.length));
        } else {
            for (const RowCopy& copy : copies) {
                const int64_t begin = share(copy.length, thread, team), end = share(copy.length, thread + 1, team);
                for (int64_t row = 0; row < rows; row++)
                    std::memcpy(copy.to.at + row * copy.to.pitch + begin, copy.from.at + row * copy.from.pitch + begin,
                                size_t(end - begin));
            }
        }
    }
}

void add_rows(RowPiece<const float> from, RowPiece<float> to, int64_t length, int64_t rows) {
    add_all(from, to, length, rows);
}

void add_rows(RowPiece<const bf16> from, RowPiece<bf16> to, int64_t length, int64_t rows) {
    add_all(from, to, length, rows);
}

}  // namespace engine
