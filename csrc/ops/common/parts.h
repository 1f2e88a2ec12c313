// How memory is laid out: like another blob's, and as rows along an axis.
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

}  // namespace engine
