// The base of poolings of position-sensitive score maps (Dai et al. 2016, arXiv 1605.06409): a grid over each region,
// in which every cell of every output reads a channel of its own.
// inputs, attributes: see regions.h, features of output_dim * group^2 channels, row-major; outputs: (R, output_dim,
// group, group), float32, row-major.
#pragma once

#include <algorithm>

#include "ops/common/onednn_util.h"
#include "ops/common/regions.h"

namespace engine {

class ScoreMaps : public Regions {
protected:
    explicit ScoreMaps(OpSpec spec) : Regions(std::move(spec)) {
        const Dims& out = spec_.output_shapes[0];
        channels_ = input(0)->shape[1];
        group_ = out[2];
        output(0, plain_layout(out));
        touch(Pass::forward, {input(0), input(1), outputs_[0]});
        if (learns()) touch(Pass::backward, {input(1), outputs_[0]->diff, input(0)->diff});
    }

    int64_t row_of(int64_t channel) const { return channel / group_ % group_; }
    int64_t column_of(int64_t channel) const { return channel % group_; }

    const float* plane(int64_t r, int64_t channel) const {
        return input(0)->data() + (image_of_[r] * channels_ + channel) * height_ * width_;
    }

    // Sets the output of every channel, which is that of one cell, to value(region, channel); to 0 for unused regions.
    template <typename Value>
    void for_cells(const Value& value) const {
#pragma omp parallel for collapse(2)
        for (int64_t r = 0; r < rois_; r++)
            for (int64_t c = 0; c < channels_; c++)
                outputs_[0]->data()[r * channels_ + c] = image_of_[r] < 0 ? 0.f : value(r, c);
    }

    // Sets the gradient of the features to 0 and calls add(region, channel, the output's gradient, plane of the
    // features' gradient) for all used regions. A channel belongs to one thread, because regions overlap and their
    // gradients are summed.
    template <typename Add>
    void add_cells(const Add& add) const {
        const int64_t plane = height_ * width_;
#pragma omp parallel for
        for (int64_t c = 0; c < channels_; c++) {
            float* const wanted = input(0)->diff->data() + c * plane;
            for (int64_t n = 0; n < images_; n++) std::fill_n(wanted + n * channels_ * plane, plane, 0.f);
            for (int64_t r = 0; r < rois_; r++)
                if (image_of_[r] >= 0)
                    add(r, c, outputs_[0]->diff->data()[r * channels_ + c], wanted + image_of_[r] * channels_ * plane);
        }
    }

    int64_t channels_, group_;
};

}  // namespace engine
