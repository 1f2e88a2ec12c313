#include "kernels/row_index.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "kernels/chunks.h"
#include "kernels/vectorised.h"
#include "kernels/whole.h"

namespace engine {

void read_rows(const std::string& layer, const float* values, int64_t limit, std::vector<int64_t>& rows) {
    for (size_t i = 0; i < rows.size(); i++) {
        const float value = values[i];
        if (!(value >= 0 && value < float(limit))) {  // also catches NaN
            throw std::runtime_error("layer '" + layer + "': index " + number_text(value) + " at position " +
                                     std::to_string(i) + " is outside [0, " + std::to_string(limit) + ")");
        }
        rows[i] = whole(value);
    }
}

template <typename T>
void gather_rows(const T* x, const std::vector<int64_t>& rows, int64_t width, T* y) {
    const int64_t count = int64_t(rows.size());
#pragma omp parallel for schedule(static) if (count * width > chunk_size)
    for (int64_t i = 0; i < count; i++) {
        if (rows[i] >= 0)
            std::copy_n(x + rows[i] * width, width, y + i * width);
        else
            std::fill_n(y + i * width, width, T{});
    }
}

namespace {

// Sets `into` to the sum of the rows of y with these numbers, or adds it with `add`.
template <typename T>
ENGINE_VECTORISED void sum_rows(const T* y, const int64_t* first, const int64_t* last, int64_t width, T* into,
                                bool add) {
    constexpr int64_t strip = 512;
    for (int64_t begin = 0; begin < width; begin += strip) {
        const int64_t length = std::min(strip, width - begin);
        const int64_t* row = first;
        const T* from = (add ? into : y + *row++ * width) + begin;
        float sums[strip];
#pragma omp simd
        for (int64_t j = 0; j < length; j++) sums[j] = number(from[j]);
        for (; row < last; row++) {
            from = y + *row * width + begin;
#pragma omp simd
            for (int64_t j = 0; j < length; j++) sums[j] += number(from[j]);
        }
#pragma omp simd
        for (int64_t j = 0; j < length; j++) store(sums[j], into[begin + j]);
    }
}

}  // namespace

template <typename T>
void scatter_rows(const T* y, const std::vector<int64_t>& rows, int64_t width, T* x, int64_t count, bool add,
                  RowSenders& senders) {
    std::vector<int64_t>& ends = senders.ends;
    ends.assign(size_t(count + 2), 0);
    senders.rows.resize(rows.size());
    for (const int64_t row : rows)
        if (row >= 0) ends[row + 2]++;
    for (int64_t row = 0; row < count; row++) ends[row + 2] += ends[row + 1];
    for (size_t i = 0; i < rows.size(); i++)
        if (rows[i] >= 0) senders.rows[ends[rows[i] + 1]++] = int64_t(i);
    const int64_t together = std::max<int64_t>(1, (1 << 15) / width);  // rows in a piece of work
    // The schedule is dynamic, because some rows are the sums of many.
#pragma omp parallel for schedule(dynamic) if (std::max(add ? 0 : count, int64_t(rows.size())) * width > chunk_size)
    for (int64_t begin = 0; begin < count; begin += together) {
        const int64_t end = std::min(begin + together, count);
        for (int64_t row = begin, next; row < end; row = next) {
            next = row + 1;
            if (ends[row] < ends[next]) {
                sum_rows(y, &senders.rows[ends[row]], senders.rows.data() + ends[next], width, x + row * width, add);
                continue;
            }
            while (next < end && ends[next] == ends[next + 1]) next++;
            if (!add) std::memset(x + row * width, 0, size_t((next - row) * width) * sizeof(T));
        }
    }
}

template void gather_rows(const float*, const std::vector<int64_t>&, int64_t, float*);
template void gather_rows(const bf16*, const std::vector<int64_t>&, int64_t, bf16*);
template void scatter_rows(const float*, const std::vector<int64_t>&, int64_t, float*, int64_t, bool, RowSenders&);
template void scatter_rows(const bf16*, const std::vector<int64_t>&, int64_t, bf16*, int64_t, bool, RowSenders&);

}  // namespace engine
