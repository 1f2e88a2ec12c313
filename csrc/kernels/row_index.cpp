#include "kernels/row_index.h"

#include <algorithm>
#include <stdexcept>

#include "kernels/chunks.h"
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

void gather_rows(const float* x, const std::vector<int64_t>& rows, int64_t width, float* y) {
    const int64_t count = int64_t(rows.size());
#pragma omp parallel for schedule(static) if (count * width > chunk_size)
    for (int64_t i = 0; i < count; i++) {
        if (rows[i] >= 0)
            std::copy_n(x + rows[i] * width, width, y + i * width);
        else
            std::fill_n(y + i * width, width, 0.f);
    }
}

void scatter_rows(const float* y, const std::vector<int64_t>& rows, int64_t width, float* x, int64_t count, bool add) {
    constexpr int64_t strip = 64;  // of columns, which no other thread writes
#pragma omp parallel for schedule(static) if (int64_t(rows.size()) * width > chunk_size)
    for (int64_t begin = 0; begin < width; begin += strip) {
        const int64_t length = std::min(strip, width - begin);
        if (!add)
            for (int64_t row = 0; row < count; row++) std::fill_n(x + row * width + begin, length, 0.f);
        for (size_t i = 0; i < rows.size(); i++) {
            if (rows[i] < 0) continue;
            const float* const from = y + int64_t(i) * width + begin;
            float* const into = x + rows[i] * width + begin;
#pragma omp simd
            for (int64_t j = 0; j < length; j++) into[j] += from[j];
        }
    }
}

}  // namespace engine
