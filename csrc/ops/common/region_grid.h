// The base of ROIPooling and ROIAlign: a grid over each region, whose cells the kernels fill.
// inputs, attributes: see regions.h, features in any layout with rows of channels; outputs: (R, C, pooled_h, pooled_w),
// float32, laid out as the features.
#pragma once

#include <algorithm>

#include "ops/common/channel_layout.h"
#include "ops/common/regions.h"

namespace engine {

class RegionGrid : public Regions {
protected:
    explicit RegionGrid(OpSpec spec) : Regions(std::move(spec)) {
        const Dims& out = spec_.output_shapes[0];
        pooled_h_ = out[2];
        pooled_w_ = out[3];
        const TensorPtr y = output(0, layout_like(input(0)->layout, out, memory::data_type::f32));
        const BottomAndTop rows = rows_of_both(input(0)->layout, y->layout);
        from_ = rows.bottom;
        to_ = rows.top;
        touch(Pass::forward, {input(0), input(1), y});
        if (learns()) touch(Pass::backward, {y->diff, input(0)->diff});
    }

    // Returns the offset in the top of the lanes of one cell of a region.
    int64_t place(int64_t r, int64_t block, int64_t cell) const {
        return to_.offset(r, block) + cell * to_.inner_stride;
    }

    // Calls fill(region, block of channels, cell) for all, in parallel.
    template <typename Fill>
    void for_cells(const Fill& fill) const {
        const int64_t blocks = to_.blocks(), cells = pooled_h_ * pooled_w_;
#pragma omp parallel for collapse(2)
        for (int64_t r = 0; r < rois_; r++)
            for (int64_t block = 0; block < blocks; block++)
                for (int64_t cell = 0; cell < cells; cell++) fill(r, block, cell);
    }

    // Sets the gradient of the features to 0 and calls add(region, block of channels, cell) for all used regions. A
    // block of channels belongs to one thread, because regions overlap and their gradients are summed.
    template <typename Add>
    void add_cells(const Add& add) const {
        const int64_t pixels = height_ * width_, blocks = to_.blocks(), cells = pooled_h_ * pooled_w_;
#pragma omp parallel for
        for (int64_t block = 0; block < blocks; block++) {
            for (int64_t n = 0; n < images_; n++)
                for (int64_t pixel = 0; pixel < pixels; pixel++) std::fill_n(wanted(n, block, pixel), from_.lanes, 0.f);
            for (int64_t r = 0; r < rois_; r++)
                for (int64_t cell = 0; cell < cells && image_of_[r] >= 0; cell++) add(r, block, cell);
        }
    }

    // Returns the lanes of a pixel in the gradient of the features.
    float* wanted(int64_t n, int64_t block, int64_t pixel) const {
        return input(0)->diff->data() + from_.offset(n, block) + pixel * from_.inner_stride;
    }

    int64_t pooled_h_, pooled_w_;
    ChannelRows from_{}, to_{};  // the features and the top, which have the same number of lanes
};

}  // namespace engine
