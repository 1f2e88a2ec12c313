#include "ops/common/elementwise.h"

#include <cstring>

namespace engine {

void Numbers::clear() const { std::memset(memory_.get_data_handle(), 0, bytes_); }

void Numbers::clear_padding(const ChannelRows& rows) const {
    engine::clear_padding(rows, narrow_ ? 2 : 4, memory_.get_data_handle());
}

// y = max(ca a + cb b, floor), in which NaN stays NaN.
template <typename A, typename B, typename Y>
ENGINE_VECTORISED static void sum_of_two(const A* a, float ca, const B* b, float cb, float floor, Y* y,
                                         int64_t length) {
#pragma omp simd
    for (int64_t i = 0; i < length; i++) {
        const float sum = ca * number(a[i]) + cb * number(b[i]);
        store(sum < floor ? floor : sum, y[i]);
    }
}

void weighted_sum(const std::vector<Numbers>& x, const std::vector<float>& coefficients, const Numbers& y, bool relu) {
    const float least = relu ? 0 : no_floor;
    if (x.size() == 1) {
        y.typed([&](auto type) {
            using T = decltype(type);
            in_chunks(y.count(), [&](int64_t begin, int64_t length) {
                scaled(x[0].as<T>() + begin, coefficients[0], least, y.as<T>() + begin, length);
            });
        });
        return;
    }
    const auto add = [&](size_t i, const auto* sum, const auto* term, auto* into, int64_t, int64_t length) {
        const float first = i == 1 ? coefficients[0] : 1, floor = i + 1 == x.size() ? least : no_floor;
        sum_of_two(sum, first, term, coefficients[i], floor, into, length);
    };
    fold_chunks(x, y, add);
}

}  // namespace engine
