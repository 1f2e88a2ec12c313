// Which of oneDNN's layouts the kernels of channel_rows.h can walk.
#pragma once

#include <optional>

#include "kernels/channel_rows.h"
#include "tensor.h"

namespace engine {

// Of a tensor whose channels are axis 1. Nothing if its memory cannot be seen as rows of channels.
std::optional<ChannelRows> channel_rows(const Layout& layout);

// The same, which throws std::invalid_argument, naming the layout, if it cannot.
ChannelRows known_rows(const Layout& layout);

// The same where the last block of channels has padding. Throws std::invalid_argument, naming the layout, where there
// is padding that cannot be seen so.
std::optional<ChannelRows> padded_rows(const Layout& layout);

// The same of an op's bottom, (N, C, ...), and of a top that layout_like() gives it: planes of one pixel can be seen in
// several ways, and both are seen in one. Throws std::invalid_argument, naming the layout, where there is none.
struct BottomAndTop {
    ChannelRows bottom, top;
};
BottomAndTop rows_of_both(const Layout& bottom, const Layout& top);

}  // namespace engine
