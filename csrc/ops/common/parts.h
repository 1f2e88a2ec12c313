// Copies between blobs and parts of blobs: what Cast, Concat, Crop, Permute, Plain and Slice have in common.
#pragma once

#include <optional>

#include "ops/common/onednn_util.h"

namespace engine {

// The order of axes and blocks of `layout` for other sizes, or another type; row-major where oneDNN has no name for
// that.
Layout layout_like(const Layout& layout, const Dims& dims, memory::data_type type);

// Memory as rows, each with all that lies along an axis and within it: `count` rows of `length` elements that begin
// `pitch` apart (0 for one row); `unit` elements lie between neighbours, or neighbouring blocks, on the axis. Nothing
// where memory is no such rows.
struct AxisRows {
    int64_t count, pitch, length, unit;
};
std::optional<AxisRows> rows_along(const Layout& layout, int64_t axis);

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
