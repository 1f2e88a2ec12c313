// Copies between blobs and parts of blobs: what Concat, Crop, Permute and Slice have in common.
#pragma once

#include "ops/common/onednn_util.h"

namespace engine {

// The order of axes and blocks of `layout` for other sizes, or another type; row-major where oneDNN has no name for
// that.
Layout layout_like(const Layout& layout, const Dims& dims, memory::data_type type);

class Parts : public Op {
protected:
    using Op::Op;

    // The sizes of a part, and whether `whole` can be cut there: not within a block.
    static bool divides(const Layout& whole, int64_t axis, const std::vector<Dims>& parts);
    // The piece of `whole` at `offset` along `axis` that has the sizes of `part`, in whole's own memory.
    static memory piece(const TensorPtr& whole, int64_t axis, int64_t offset, const Dims& part);
    void copy(const memory& from, const memory& to, Calls& calls);
};

}  // namespace engine
