#include "ops/common/parts.h"

#include <algorithm>
#include <numeric>

namespace engine {

using tag = memory::format_tag;

// Tells whether a layout is `dense`, or differs from it only in that samples lie further apart: some channels of a
// larger blob.
static bool follows(const Layout& layout, const Layout& dense) {
    if (layout == dense) return true;
    if (layout.get_inner_blks() != dense.get_inner_blks() || layout.get_inner_idxs() != dense.get_inner_idxs())
        return false;
    const Dims strides = layout.get_strides(), others = dense.get_strides();
    return strides[0] > others[0] && std::equal(strides.begin() + 1, strides.end(), others.begin() + 1);
}

Layout layout_like(const Layout& layout, const Dims& dims, memory::data_type type) {
    const Dims strides = layout.get_strides(), blocks = layout.get_inner_blks();
    if (!blocks.empty()) {
        static const tag tags[][3] = {{tag::aBc4b, tag::aBc8b, tag::aBc16b},
                                      {tag::aBcd4b, tag::aBcd8b, tag::aBcd16b},
                                      {tag::aBcde4b, tag::aBcde8b, tag::aBcde16b}};
        if (dims.size() < 3 || dims.size() > 5) return plain_layout(dims, type);
        for (const tag candidate : tags[dims.size() - 3])
            if (follows(layout, Layout(layout.get_dims(), layout.get_data_type(), candidate)))
                return Layout(dims, type, candidate);
        return plain_layout(dims, type);
    }
    std::vector<size_t> order(dims.size());  // of axes, innermost first
    std::iota(order.rbegin(), order.rend(), 0);
    // An axis of one element has the stride of a neighbour. It then counts as the inner of the two, the channels'
    // before others, as in nhwc.
    const Dims from = layout.get_dims();
    const auto place = [&](size_t axis) { return from[axis] != 1 ? 2 : axis == 1 ? 0 : 1; };
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
        return strides[a] != strides[b] ? strides[a] < strides[b] : place(a) < place(b);
    });
    Dims dense(dims.size());
    int64_t stride = 1;
    for (const size_t axis : order) {
        dense[axis] = stride;
        stride *= dims[axis];
    }
    return Layout(dims, type, dense);
}

std::optional<AxisRows> rows_along(const Layout& layout, int64_t axis) {
    if (layout.get_format_kind() != memory::format_kind::blocked) return {};
    const Dims strides = layout.get_strides(), blocks = layout.get_inner_blks(), axes = layout.get_inner_idxs();
    Dims extents = layout.get_padded_dims();
    int64_t inside = 1;  // elements within one step along the axis
    for (size_t i = 0; i < blocks.size(); i++) {
        extents[axes[i]] /= blocks[i];
        inside *= blocks[i];
    }
    std::vector<size_t> order;  // the other axes that have more than one step, innermost first
    for (size_t i = 0; i < extents.size(); i++)
        if (extents[i] > 1 && int64_t(i) != axis) order.push_back(i);
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return strides[a] < strides[b]; });
    AxisRows rows{1, 0, strides[axis] * extents[axis], strides[axis]};
    int64_t next = 0;  // the stride that the next outer axis must have; 0 before the first one
    for (const size_t i : order) {
        if (strides[i] < strides[axis]) {
            if (strides[i] != inside) return {};
            inside *= extents[i];
            continue;
        }
        if (!rows.pitch) rows.pitch = strides[i];
        if (next && strides[i] != next) return {};
        next = strides[i] * extents[i];
        rows.count *= extents[i];
    }
    if (inside != strides[axis] || (rows.pitch && rows.pitch < rows.length)) return {};
    return rows;
}

}  // namespace engine
