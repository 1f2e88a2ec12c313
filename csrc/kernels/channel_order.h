// Brings the channels of a blob into another order, in any layout.
#pragma once

#include <vector>

#include "kernels/bf16.h"
#include "kernels/channel_rows.h"

namespace engine {

class ChannelOrder {
public:
    ChannelOrder() = default;
    // Channel c of the result is channel order[c] of the blob. Both are laid out as `rows`.
    ChannelOrder(const ChannelRows& rows, const std::vector<int64_t>& order);

    // T: float, bf16. Padding becomes zero.
    template <typename T>
    void apply(const T* x, T* y) const;

private:
    // What sixteen channels of the result take from sixteen of the blob, as indices of a permutation: for each lane its
    // own number, if it keeps what it has, or 16 plus the lane that it takes. pairs: the same for two pixels of bf16,
    // with 32 in place of 16.
    struct Take {
        int64_t from;  // which sixteen of the blob
        alignas(64) int32_t lanes[16];
        alignas(64) int16_t pairs[32];
    };

    template <typename T, bool whole>
    void take(const T* x, T* y, int64_t pixels) const;
    void take_pairs(const bf16* x, bf16* y, int64_t pixels) const;
    template <typename T>
    void copy(const T* x, T* y, int64_t pixels) const;

    ChannelRows rows_{};
    std::vector<int64_t> order_;
    bool by_sixteen_ = false;
    int64_t unit_stride_ = 0;  // elements from sixteen channels to the next
    std::vector<Take> takes_;
    std::vector<size_t> ends_;  // 0, then the end in takes_ of what each sixteen channels take
};

}  // namespace engine
