// Which of oneDNN's layouts the kernels of channel_rows.h can walk.
#pragma once

#include <optional>

#include "kernels/channel_rows.h"
#include "tensor.h"

namespace engine {

// Of a tensor whose channels are axis 1. Nothing if its memory cannot be seen as rows of channels.
std::optional<ChannelRows> channel_rows(const Layout& layout);

}  // namespace engine
