// The average over each cell of a grid laid over regions of interest, every cell in a channel of its own (Dai et al.
// 2016, arXiv 1605.06409). inputs: features (N, output_dim * group^2, H, W), row-major; rois (R, 5); output: (R,
// output_dim, group, group); attributes: spatial_scale, from the regions' pixels to those of the features.
#include <algorithm>
#include <cmath>

#include "kernels/whole.h"
#include "ops/common/onednn_util.h"
#include "ops/common/rois.h"

namespace engine {
namespace {

class PSROIPooling : public Op {
public:
    explicit PSROIPooling(OpSpec spec) : Op(std::move(spec)), scale_(float(spec_.attributes.real("spatial_scale"))) {
        const Dims &in = input(0)->shape, &out = spec_.output_shapes[0];
        images_ = in[0];
        channels_ = in[1];
        height_ = in[2];
        width_ = in[3];
        rois_ = out[0];
        group_ = out[2];
        image_of_.resize(rois_);
        output(0, plain_layout(out));
        touch(Pass::forward, {input(0), input(1), outputs_[0]});
        if (input_gradient(0) && output_gradient(0))
            touch(Pass::backward, {input(1), outputs_[0]->diff, input(0)->diff});
    }

    // Cells and channels correspond one to one.
    void forward(const dnnl::stream&) override {
        const float* const rois = input(1)->data();
        for (int64_t r = 0; r < rois_; r++) image_of_[r] = roi_image(spec_, rois, r, images_);
#pragma omp parallel for collapse(2)
        for (int64_t r = 0; r < rois_; r++) {
            for (int64_t c = 0; c < channels_; c++) {
                const Bin cell = bin(rois + r * roi_columns, c);
                float& y = outputs_[0]->data()[r * channels_ + c];
                y = 0;
                if (image_of_[r] < 0 || cell.empty()) continue;
                const float* const x = input(0)->data() + (image_of_[r] * channels_ + c) * height_ * width_;
                for (int64_t h = cell.top; h < cell.bottom; h++)
                    for (int64_t w = cell.left; w < cell.right; w++) y += x[h * width_ + w];
                y /= area(cell);
            }
        }
    }

    // A channel belongs to one thread: regions overlap, and their gradients add.
    void backward(const dnnl::stream&) override {
        const float* const rois = input(1)->data();
        const int64_t plane = height_ * width_;
#pragma omp parallel for
        for (int64_t c = 0; c < channels_; c++) {
            float* const wanted = input(0)->diff->data() + c * plane;
            for (int64_t n = 0; n < images_; n++) std::fill_n(wanted + n * channels_ * plane, plane, 0.f);
            for (int64_t r = 0; r < rois_; r++) {
                const Bin cell = bin(rois + r * roi_columns, c);
                if (image_of_[r] < 0 || cell.empty()) continue;
                const float share = outputs_[0]->diff->data()[r * channels_ + c] / area(cell);
                float* const x = wanted + image_of_[r] * channels_ * plane;
                for (int64_t h = cell.top; h < cell.bottom; h++)
                    for (int64_t w = cell.left; w < cell.right; w++) x[h * width_ + w] += share;
            }
        }
    }

private:
    static float area(const Bin& bin) { return float((bin.bottom - bin.top) * (bin.right - bin.left)); }

    // The cell that channel c averages.
    Bin bin(const float* roi, int64_t c) const {
        const float left = std::round(roi[1]) * scale_, top = std::round(roi[2]) * scale_;
        // Pixels of the region are included on both ends; a region never gets smaller than this.
        const float width = std::max((std::round(roi[3]) + 1) * scale_ - left, 0.1f);
        const float height = std::max((std::round(roi[4]) + 1) * scale_ - top, 0.1f);
        const int64_t row = c / group_ % group_, column = c % group_;
        return {edge(top, row, height, false, height_), edge(top, row + 1, height, true, height_),
                edge(left, column, width, false, width_), edge(left, column + 1, width, true, width_)};
    }

    int64_t edge(float begin, int64_t i, float size, bool end, int64_t limit) const {
        const float at = float(i) * (size / float(group_)) + begin;
        return std::clamp<int64_t>(whole(end ? std::ceil(at) : std::floor(at)), 0, limit);
    }

    float scale_;
    int64_t images_, channels_, height_, width_, rois_, group_;
    std::vector<int64_t> image_of_;  // every region's
};

static const RegisterOp<PSROIPooling> registered("PSROIPooling");

}  // namespace
}  // namespace engine
