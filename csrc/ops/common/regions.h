// The base of ops over regions of interest.
// inputs: features (N, C, H, W), rois (R, 5), row-major (rois.h), both float32; outputs: (R, channels, rows, columns);
// attributes: spatial_scale (from the regions' pixels to those of the features).
#pragma once

#include <vector>

#include "ops/common/parts.h"
#include "ops/common/rois.h"

namespace engine {

class Regions : public Op {
protected:
    explicit Regions(OpSpec spec) : Op(std::move(spec)), scale_(float(spec_.attributes.real("spatial_scale"))) {
        const Dims& in = input(0)->shape;
        images_ = in[0];
        height_ = in[2];
        width_ = in[3];
        rois_ = spec_.output_shapes[0][0];
        image_of_.resize(rois_);
    }

    bool learns() const { return input_gradient(0) && output_gradient(0); }

    const float* roi(int64_t r) const { return input(1)->data() + r * roi_columns; }

    // Sets image_of_. Throws std::runtime_error for a region of an image that is not in the batch.
    void find_images() {
        for (int64_t r = 0; r < rois_; r++) image_of_[r] = roi_image(spec_, input(1)->data(), r, images_);
    }

    float scale_;
    int64_t images_, height_, width_, rois_;
    std::vector<int64_t> image_of_;  // of each region; -1: the region is unused
};

}  // namespace engine
