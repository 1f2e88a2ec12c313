// Checks weights laid out for AMX, number by number, for each layout that they may come from. Run by
// tests/csrc/test_packed_weights.py.
#include "kernels/packed_weights.h"

#include <cstdio>

namespace {

using Dims = std::vector<int64_t>;
using engine::PackedWeights;

int64_t at(const PackedWeights::Blocked& layout, Dims index) {
    int64_t offset = 0, inner = 1;
    for (size_t i = layout.blocks.size(); i-- > 0; inner *= layout.blocks[i]) {
        int64_t& along = index[size_t(layout.axes[i])];
        offset += along % layout.blocks[i] * inner;
        along /= layout.blocks[i];
    }
    for (size_t i = 0; i < index.size(); i++) offset += index[i] * layout.strides[i];
    return offset;
}

// Returns a layout with blocks in this order. Its outer axes lie from the last to the first, or in the order given.
PackedWeights::Blocked blocked(Dims dims, Dims blocks, Dims axes, Dims order = {3, 2, 1, 0}) {
    int64_t stride = 1;
    for (size_t i = 0; i < blocks.size(); i++) {
        dims[size_t(axes[i])] /= blocks[i];
        stride *= blocks[i];
    }
    Dims strides(dims.size());
    for (const int64_t axis : order) {
        strides[size_t(axis)] = stride;
        stride *= dims[size_t(axis)];
    }
    return {strides, blocks, axes};
}

bool is_packed(const Dims& dims, const PackedWeights::Blocked& from, const PackedWeights::Blocked& to) {
    const auto job = PackedWeights::of(dims, from, to);
    const int64_t count = dims[0] * dims[1] * dims[2] * dims[3];
    std::vector<float> given(size_t(count), 0.f);
    std::vector<uint16_t> packed(size_t(count), 0);
    for (int64_t i = 0; i < count; i++) given[size_t(i)] = float(i % 255 - 127);  // exact in bfloat16
    if (!job) return false;
    job->pack(given.data(), packed.data());
    for (int64_t o = 0; o < dims[0]; o++)
        for (int64_t i = 0; i < dims[1]; i++)
            for (int64_t h = 0; h < dims[2]; h++)
                for (int64_t w = 0; w < dims[3]; w++) {
                    union {
                        uint32_t bits;
                        float value;
                    } number{uint32_t(packed[size_t(at(to, {o, i, h, w}))]) << 16};
                    if (number.value != given[size_t(at(from, {o, i, h, w}))]) return false;
                }
    return true;
}

}  // namespace

int main() {
    int cases = 0, wrong = 0;
    const auto check = [&](const Dims& dims, const PackedWeights::Blocked& from) {
        for (const int64_t pairs : {0, 1}) {
            for (const int64_t lanes : {16, 48, 64}) {
                if (dims[size_t(1 - pairs)] % lanes) continue;
                cases++;
                wrong += !is_packed(dims, from, blocked(dims, {16, lanes, 2}, {pairs, 1 - pairs, pairs}));
            }
        }
    };
    const Dims one{192, 128, 1, 1}, square{192, 64, 3, 2};
    check(one, blocked(one, {}, {}));
    check(one, blocked(one, {}, {}, {0, 1, 2, 3}));
    for (const Dims& dims : {one, square}) {
        check(dims, blocked(dims, {}, {}, {1, 3, 2, 0}));  // channels last
        for (const int64_t outer : {16, 32}) {
            for (const int64_t inner : {16, 64}) {
                check(dims, blocked(dims, {outer, inner}, {1, 0}));
                check(dims, blocked(dims, {outer, inner}, {0, 1}));
            }
        }
    }
    const Dims plain{64, 64, 2, 2};
    const auto to = blocked(plain, {16, 16, 2}, {1, 0, 1});
    cases += 2;  // layouts that it must leave to others
    wrong += PackedWeights::of(plain, blocked(plain, {}, {}), to).has_value();
    wrong +=
        PackedWeights::of(plain, blocked(plain, {16, 16}, {0, 1}), blocked(plain, {16, 16, 4}, {1, 0, 1})).has_value();
    std::printf("%d of %d wrong\n", wrong, cases);
    return wrong > 0;
}
