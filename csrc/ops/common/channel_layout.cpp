#include "ops/common/channel_layout.h"

#include <stdexcept>

namespace engine {

std::optional<ChannelRows> channel_rows(const Layout& layout) {
    const Dims dims = layout.get_dims();
    const int rank = int(dims.size());
    if (layout.get_format_kind() != dnnl::memory::format_kind::blocked) return {};
    if (rank == 1) return ChannelRows::plain(dims[0], 1, 1);
    const Dims strides = layout.get_strides(), blocks = layout.get_inner_blks(), axes = layout.get_inner_idxs();
    if (blocks.size() > 1 || (blocks.size() == 1 && axes[0] != 1)) return {};
    int64_t inner = 1;
    for (int axis = rank - 1; axis >= 2; axis--) {
        if (dims[axis] > 1 && strides[axis] != strides[rank - 1] * inner) return {};
        inner *= dims[axis];
    }
    const int64_t step = rank > 2 ? strides[rank - 1] : dims[1];
    if (!blocks.empty()) return ChannelRows{dims[0], dims[1], inner, blocks[0], strides[0], strides[1], step};
    const bool is_run = dims[1] == 1 && inner > 1;  // with one lane, kernels assume that rows lie side by side
    if (strides[1] == 1 && !(is_run && step != 1))
        return ChannelRows{dims[0], dims[1], inner, dims[1], strides[0], 0, step};
    if (step == 1) return ChannelRows{dims[0], dims[1], inner, 1, strides[0], strides[1], 1};
    return {};
}

ChannelRows known_rows(const Layout& layout) {
    const auto rows = channel_rows(layout);
    if (!rows) throw std::invalid_argument("no kernel for a blob laid out as " + layout_name(layout));
    return *rows;
}

static ChannelRows plain_rows(const Layout& layout) {
    const Dims dims = layout.get_dims();
    const int64_t inner = count_of({dims.begin() + 2, dims.end()});
    return {dims.at(0), dims.at(1), inner, 1, dims[1] * inner, inner, 1};
}

std::optional<ChannelRows> padded_rows(const Layout& layout) {
    if (layout.get_dims() == layout.get_padded_dims()) return {};
    return known_rows(layout);
}

BottomAndTop rows_of_both(const Layout& bottom, const Layout& top) {
    if (is_plain(bottom) && is_plain(top)) return {plain_rows(bottom), plain_rows(top)};
    const BottomAndTop rows{known_rows(bottom), known_rows(top)};
    if (rows.bottom.lanes != rows.top.lanes)
        throw std::invalid_argument("no kernel from a blob laid out as " + layout_name(bottom) +
                                    " to one laid out as " + layout_name(top));
    return rows;
}

}  // namespace engine
