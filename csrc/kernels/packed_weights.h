// Copies of float32 weights as bfloat16, laid out as AMX takes them: sixteen pairs along one dimension, the two of a
// pair together, and between the pairs some `lanes` of the other dimension (AcdB16b64a2b and its like). oneDNN's own
// reorders take three times as long.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace engine {

class PackedWeights {
public:
    // How memory holds elements: elements between neighbours, or, where a dimension is cut into blocks, between these;
    // and the blocks, the outermost first, with the dimension that each belongs to.
    struct Blocked {
        std::vector<int64_t> strides, blocks, axes;
    };
    // Nothing where that is left to oneDNN: other layouts, processors without AVX512_BF16. dims need no padding.
    static std::optional<PackedWeights> of(const std::vector<int64_t>& dims, const Blocked& from, const Blocked& to);

    void pack(const float* from, uint16_t* to) const;

private:
    // A dimension in memory: blocks that are `outer` elements apart, and in a block elements that are `inner` apart.
    struct Axis {
        int64_t block, outer, inner;
        int64_t at(int64_t i) const { return i / block * outer + i % block * inner; }
        bool together() const { return block == 1 ? outer == 1 : inner == 1; }
    };
    static Axis axis_of(const Blocked& layout, int which);

    int64_t pairs_, lanes_;                         // elements along the dimension of the pairs, and the other
    Axis from_pairs_, from_lanes_;                  // where they are read
    int64_t to_pairs_, to_lanes_, lanes_of_block_;  // blocks are written so far from each other, and so wide
    std::vector<int64_t> from_pixels_, to_pixels_;  // of the kernel: where each begins
};

}  // namespace engine
