// The base of Cast, Concat, Crop, Permute, Plain and Slice: copies between blobs and parts of blobs, float32 or bf16.
#pragma once

#include <optional>

#include "ops/common/onednn_util.h"

namespace engine {

// Returns a dense layout of `dims` and `type` with the order of axes and the blocks of `layout`; row-major if oneDNN
// has no tag for these blocks.
Layout layout_like(const Layout& layout, const Dims& dims, memory::data_type type);

// Memory as rows. A row holds all elements along an axis and of the axes inside of it: there are `count` rows of
// `length` elements, which begin `pitch` apart (0 for one row). `unit` is the distance between neighbours on the axis,
// or between its blocks.
struct AxisRows {
    int64_t count, pitch, length, unit;
};
// Returns nothing if memory cannot be seen so.
std::optional<AxisRows> rows_along(const Layout& layout, int64_t axis);

class Parts : public Op {
protected:
    using Op::Op;

    // Tells whether `whole` can be cut along an axis into parts of these sizes: not if a cut lies within a block.
    static bool divides(const Layout& whole, int64_t axis, const std::vector<Dims>& parts);
    // Returns the piece of `whole` that begins at `offset` along the axis and has the sizes `part`, in whole's memory.
    static memory piece(const TensorPtr& whole, int64_t axis, int64_t offset, const Dims& part);
    // Adds the copy to the calls.
    void copy(const memory& from, const memory& to, Calls& calls);
};

}  // namespace engine
