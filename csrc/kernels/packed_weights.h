// Copies float32 weights to bfloat16 in the layouts of AMX: sixteen pairs along one dimension, the two of a pair side
// by side, and between the pairs some `lanes` of the other dimension (AcdB16b64a2b and similar ones). oneDNN's own
// reorders take three times as long.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace engine {

class PackedWeights {
public:
    // A blocked layout. strides: from an element to its neighbour along each dimension, or from a block to the next if
    // the dimension is cut into blocks; blocks: their sizes, the outermost first; axes: the dimension of each.
    struct Blocked {
        std::vector<int64_t> strides, blocks, axes;
    };
    // Returns nothing for what is left to oneDNN: other layouts, processors without AVX512_BF16. dims must need no
    // padding.
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

    int64_t pairs_, lanes_;                         // elements along the dimension of the pairs, and along the other
    Axis from_pairs_, from_lanes_;                  // these dimensions in the source
    int64_t to_pairs_, to_lanes_, lanes_of_block_;  // distances between blocks in the target, and the lanes of a block
    std::vector<int64_t> from_pixels_, to_pixels_;  // where each pixel of the kernel begins
};

}  // namespace engine
