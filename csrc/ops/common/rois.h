// Regions of interest: rows (image, x1, y1, x2, y2), in pixels of the net's input. A row with a negative image is
// unused.
#pragma once

#include <sstream>
#include <stdexcept>

#include "kernels/whole.h"
#include "op.h"

namespace engine {

constexpr int64_t roi_columns = 5;

// Returns the image of row i; -1 if the row is unused. Throws std::runtime_error if there is no such image.
inline int64_t roi_image(const OpSpec& spec, const float* rois, int64_t i, int64_t images) {
    const float image = rois[i * roi_columns];
    if (image < 0) return -1;
    if (image < float(images)) return whole(image);
    std::ostringstream message;
    message << "layer '" << spec.name << "': row " << i << " of the regions names image " << image
            << ", but the batch has " << images;
    throw std::runtime_error(message.str());
}

// One cell of a grid over a region, clipped to the features: [top, bottom) and [left, right), in pixels.
struct Bin {
    int64_t top, bottom, left, right;
    bool empty() const { return bottom <= top || right <= left; }
};

}  // namespace engine
