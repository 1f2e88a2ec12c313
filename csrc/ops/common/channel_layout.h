// Tells which of oneDNN's layouts the kernels of channel_rows.h can walk.
#pragma once

#include <optional>

#include "kernels/channel_rows.h"
#include "tensor.h"

namespace engine {

// Returns the memory of a tensor whose channels are axis 1 as rows of channels; nothing if it cannot be seen so.
std::optional<ChannelRows> channel_rows(const Layout& layout);

// Does the same, but throws std::invalid_argument, which names the layout, if it cannot be seen so.
ChannelRows known_rows(const Layout& layout);

// Returns known_rows() of a layout with padding; nothing for a layout without.
std::optional<ChannelRows> padded_rows(const Layout& layout);

// Returns the rows of an op's bottom, (N, C, ...), and of its top, which has the layout of layout_like(). Planes of one
// pixel can be seen in several ways: both are seen in the same one. Throws std::invalid_argument, which names the
// layouts, if there is none.
struct BottomAndTop {
    ChannelRows bottom, top;
};
BottomAndTop rows_of_both(const Layout& bottom, const Layout& top);

}  // namespace engine
